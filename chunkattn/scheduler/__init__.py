"""A small scheduler for continuous batching with chunked prefill over a paged KV cache."""

from __future__ import annotations

from chunkattn.scheduler.batch import Chunk, ScheduledBatch, StepMetadata
from chunkattn.scheduler.config import SchedulerConfig
from chunkattn.scheduler.engine import Engine, StepRecord
from chunkattn.scheduler.executor import Executor, ModelExecutor
from chunkattn.scheduler.metrics import RequestTimes, request_times
from chunkattn.scheduler.pages import PagePool
from chunkattn.scheduler.request import Request, Status, slots_needed
from chunkattn.scheduler.scheduler import Scheduler

__all__ = [
    "Chunk",
    "Engine",
    "Executor",
    "ModelExecutor",
    "PagePool",
    "Request",
    "RequestTimes",
    "ScheduledBatch",
    "Scheduler",
    "SchedulerConfig",
    "Status",
    "StepMetadata",
    "StepRecord",
    "request_times",
    "slots_needed",
]

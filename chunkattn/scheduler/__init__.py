"""A small scheduler for continuous batching with chunked prefill over a paged KV cache."""

from __future__ import annotations

from chunkattn.scheduler.batch import Chunk, ScheduledBatch
from chunkattn.scheduler.config import SchedulerConfig
from chunkattn.scheduler.pages import CachedPage, PagePool
from chunkattn.scheduler.policy import Fair, Fcfs, Policy, Sjf
from chunkattn.scheduler.request import Request, Status, slots_needed
from chunkattn.scheduler.scheduler import Scheduler

__all__ = [
    "CachedPage",
    "Chunk",
    "Fair",
    "Fcfs",
    "PagePool",
    "Policy",
    "Request",
    "ScheduledBatch",
    "Scheduler",
    "SchedulerConfig",
    "Sjf",
    "Status",
    "slots_needed",
]

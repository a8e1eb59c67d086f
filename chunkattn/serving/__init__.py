"""Runs a scheduler: the engine loop, executors on a model, and the metrics of what users felt."""

from __future__ import annotations

from chunkattn.serving.drafts import Draft, NgramDrafter
from chunkattn.serving.engine import Engine, StepRecord
from chunkattn.serving.executor import Executor, ModelExecutor
from chunkattn.serving.metrics import Machine, Slo, percentile, summarise
from chunkattn.serving.recorder import ChunkSpan, Recorder, RequestRecord
from chunkattn.serving.request_times import RequestTimes, request_times
from chunkattn.serving.step_metadata import StepMetadata
from chunkattn.serving.step_work import ModelWork, StepWork, visible_pairs

__all__ = [
    "ChunkSpan",
    "Draft",
    "Engine",
    "Executor",
    "Machine",
    "ModelExecutor",
    "ModelWork",
    "NgramDrafter",
    "Recorder",
    "RequestRecord",
    "RequestTimes",
    "Slo",
    "StepMetadata",
    "StepRecord",
    "StepWork",
    "percentile",
    "request_times",
    "summarise",
    "visible_pairs",
]

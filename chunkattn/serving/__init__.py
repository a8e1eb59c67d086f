"""Runs a scheduler: the engine loop, executors on a model, and the metrics of what users felt."""

from __future__ import annotations

from chunkattn.serving.drafts import Draft, NgramDrafter
from chunkattn.serving.engine import Engine, StepRecord
from chunkattn.serving.executor import Executor, ModelExecutor
from chunkattn.serving.request_times import RequestTimes, request_times
from chunkattn.serving.step_metadata import StepMetadata

__all__ = [
    "Draft",
    "Engine",
    "Executor",
    "ModelExecutor",
    "NgramDrafter",
    "RequestTimes",
    "StepMetadata",
    "StepRecord",
    "request_times",
]

"""Replays request traces on a scheduler, with a real model or with a cost model of one."""

from __future__ import annotations

from chunkattn.simulation.calibration import Calibration
from chunkattn.simulation.capacity_search import find_capacity
from chunkattn.simulation.clock import SimulatedClock, WorkClock
from chunkattn.simulation.cost_model import CostModel, MeasuredStep
from chunkattn.simulation.disaggregated import Link, PageHandover, replay_disaggregated
from chunkattn.simulation.executor import SimulatedExecutor
from chunkattn.simulation.experiment import Capacity, Experiment, Outcome
from chunkattn.simulation.prompts import BlockTokens, to_requests
from chunkattn.simulation.replay import Worker, fitting, replay
from chunkattn.simulation.settings import PRESETS, Setting, parse_setting
from chunkattn.simulation.synthetic import PROCESSES, SyntheticProcess
from chunkattn.simulation.trace import TraceRequest, read_trace, scale

__all__ = [
    "PRESETS",
    "PROCESSES",
    "BlockTokens",
    "Calibration",
    "Capacity",
    "CostModel",
    "Experiment",
    "Link",
    "MeasuredStep",
    "Outcome",
    "PageHandover",
    "Setting",
    "SimulatedClock",
    "SimulatedExecutor",
    "SyntheticProcess",
    "TraceRequest",
    "WorkClock",
    "Worker",
    "find_capacity",
    "fitting",
    "parse_setting",
    "read_trace",
    "replay",
    "replay_disaggregated",
    "scale",
    "to_requests",
]

"""An executor that computes nothing and takes the time a model would."""

from __future__ import annotations

from chunkattn.scheduler import ScheduledBatch
from chunkattn.serving import StepWork
from chunkattn.simulation.clock import SimulatedClock
from chunkattn.simulation.cost_model import CostModel


class SimulatedExecutor:
    """Moves a clock by the predicted time of each step; every sampled token is 0."""

    def __init__(self, cost: CostModel, clock: SimulatedClock) -> None:
        self._cost = cost
        self._clock = clock

    def __call__(self, batch: ScheduledBatch) -> dict[str, int]:
        self._clock.advance(self._cost.seconds(StepWork.of(batch.chunks)))
        return {chunk.request.request_id: 0 for chunk in batch.chunks if chunk.samples}

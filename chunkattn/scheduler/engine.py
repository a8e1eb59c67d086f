"""The loop: schedule, execute, update, and the times at which it all happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from chunkattn.scheduler.batch import ScheduledBatch
from chunkattn.scheduler.executor import Executor
from chunkattn.scheduler.request import Request
from chunkattn.scheduler.scheduler import Scheduler


@dataclass(frozen=True)
class StepRecord:
    """One step that ran.

    Attributes:
        batch: its work.
        start, end: seconds on the engine's clock.
        tokens: the (request, token) pairs it gave.
    """

    batch: ScheduledBatch
    start: float
    end: float
    tokens: tuple[tuple[Request, int], ...]


class Engine:
    """Drives a scheduler and an executor.

    Attributes:
        scheduler: what runs next.
        steps: every step so far.
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Wires the parts.

        Args:
            scheduler: decides.
            executor: computes; must have finished when it returns.
            clock: seconds, monotonic.
        """
        self.scheduler = scheduler
        self.steps: list[StepRecord] = []
        self._executor = executor
        self._clock = clock

    def add_request(self, request: Request) -> None:
        """Queues a request that arrives now.

        Raises:
            ValueError: the scheduler refused it.
        """
        request.arrival_time = self._clock()
        self.scheduler.add_request(request)

    def step(self) -> StepRecord:
        """Runs one step.

        Raises:
            RuntimeError: there is nothing to do.
        """
        if not self.scheduler.has_work:
            raise RuntimeError("step: expected a waiting or running request, got none")
        start = self._clock()
        batch = self.scheduler.schedule()
        tokens = self.scheduler.update(batch, self._executor(batch))
        self.steps.append(StepRecord(batch, start, self._clock(), tuple(tokens)))
        return self.steps[-1]

    def run(self) -> None:
        """Steps until every request is finished."""
        while self.scheduler.has_work:
            self.step()

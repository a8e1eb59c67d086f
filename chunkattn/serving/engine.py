"""The loop: schedule, execute, update, and the times at which it all happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from chunkattn.scheduler import Request, ScheduledBatch, Scheduler
from chunkattn.serving.executor import Executor


@dataclass(frozen=True)
class StepRecord:
    """One step that ran.

    Attributes:
        batch: its work.
        start, end: seconds on the engine's clock.
        tokens: the (request, token) pairs it gave.
        host_seconds: what `schedule` and `update` took, in real time.
        metadata_seconds: what building the step's tensors took.
        pages_in_use: pages that requests held while it ran.
    """

    batch: ScheduledBatch
    start: float
    end: float
    tokens: tuple[tuple[Request, int], ...]
    host_seconds: float = 0.0
    metadata_seconds: float = 0.0
    pages_in_use: int = 0


class Engine:
    """Drives a scheduler and an executor.

    Attributes:
        scheduler: what runs next.
        executor: what computes.
        steps: every step so far, unless a recorder takes them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        clock: Callable[[], float] = time.perf_counter,
        recorder: Callable[[StepRecord], None] | None = None,
    ) -> None:
        """Wires the parts.

        Args:
            scheduler: decides.
            executor: computes; must have finished when it returns.
            clock: seconds, monotonic.
            recorder: called with every step instead of keeping it.
        """
        self.scheduler = scheduler
        self.executor = executor
        self.steps: list[StepRecord] = []
        self._clock = clock
        self._record = recorder or self.steps.append

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
        start, began = self._clock(), time.perf_counter()
        batch = self.scheduler.schedule()
        scheduled = time.perf_counter()
        pages = self.scheduler.pool.num_pages - len(self.scheduler.pool)
        sampled = self.executor(batch) if batch.chunks else {}
        executed = time.perf_counter()
        tokens = self.scheduler.update(batch, sampled)
        host = time.perf_counter() - executed + scheduled - began
        metadata: float = getattr(self.executor, "metadata_seconds", 0.0)  # a simulator builds none
        record = StepRecord(batch, start, self._clock(), tuple(tokens), host, metadata, pages)
        self._record(record)
        return record

    def run(self) -> None:
        """Steps until every request is finished."""
        while self.scheduler.has_work:
            self.step()

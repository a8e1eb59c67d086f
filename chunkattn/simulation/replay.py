"""Replays arrivals on an engine, in the order of its own clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from chunkattn.scheduler import Request, Scheduler, SchedulerConfig, slots_needed
from chunkattn.serving import Engine, Executor, Recorder, StepRecord
from chunkattn.simulation.clock import Clock

OnStep = Callable[[StepRecord, Scheduler], None]


@dataclass(frozen=True)
class Worker:
    """A machine of a replay: an engine with its own clock.

    Attributes:
        engine: scheduler and executor.
        clock: the engine's.
        recorder: hears of every step.
    """

    engine: Engine
    clock: Clock
    recorder: Recorder

    @classmethod
    def build(cls, config: SchedulerConfig, executor: Executor, clock: Clock, watched: Collection[str] = ()) -> Worker:
        """Wires a worker.

        Args:
            config: of its scheduler.
            executor: computes, or simulates on the same clock.
            clock: of the engine.
            watched: ids of requests whose chunks are kept.
        """
        scheduler = Scheduler(config)
        recorder = Recorder(scheduler, watched)
        return cls(Engine(scheduler, executor, clock=clock, recorder=recorder), clock, recorder)

    def step(self) -> StepRecord:
        """Runs one step; the clock runs meanwhile."""
        self.clock.resume()
        try:
            return self.engine.step()
        finally:
            self.clock.pause()


def fitting(requests: Sequence[Request], config: SchedulerConfig) -> list[Request]:
    """The requests that a cache can hold; the others would be refused.

    Raises:
        ValueError: it can hold none.
    """
    slots = [slots_needed(len(request.prompt_token_ids), request.max_tokens) for request in requests]
    held = [request for request, n in zip(requests, slots) if n <= config.num_pages * config.page_size]
    if not held:
        raise ValueError(
            f"pages: expected room for at least one request in {config.num_pages} pages of {config.page_size}, "
            f"got none of {len(requests)}"
        )
    return held


def replay(worker: Worker, requests: Sequence[Request], on_step: OnStep | None = None) -> None:
    """Runs requests to their end; open loop: nobody waits with a question for somebody else's answer.

    Args:
        worker: runs them.
        requests: in the order of their arrival times.
        on_step: called after every step.

    Raises:
        ValueError: a request that the scheduler refuses.
    """
    scheduler, clock = worker.engine.scheduler, worker.clock
    arrived = 0
    while arrived < len(requests) or scheduler.has_work:
        if not scheduler.has_work:
            clock.skip_to(requests[arrived].arrival_time)
        now = clock()
        while arrived < len(requests) and requests[arrived].arrival_time <= now:
            scheduler.add_request(requests[arrived])
            arrived += 1
        record = worker.step()
        if on_step is not None:
            on_step(record, scheduler)

"""Interleaved rounds: every contender gets one window a round, in an order drawn anew each round.

A drift of the machine then hits all of them alike, and a ratio of two providers is taken round by round.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from chunkattn.bench import gate
from chunkattn.bench.record import Sample
from chunkattn.bench.timing import Window, window
from chunkattn.bench.watch import Watch


@dataclass
class Contender:
    """Something that is timed.

    Attributes:
        name: its key.
        calls: one prepared call an input set; calls rotate over them so that caches are cold.
        watch: what the calls must answer; None for limits, which have no answer.
        renew: prepares the calls again, on inputs that have moved.
        windows: one a round.
        refused: set when a timed call gave a wrong answer; no more windows then.
    """

    name: str
    calls: Sequence[Callable[[], object]]
    watch: Watch | None = None
    renew: Callable[[], Sequence[Callable[[], object]]] | None = None
    windows: list[Window] = field(default_factory=list)
    refused: str = ""
    _turn: int = 0

    def measure(self, *, seconds: float, device: torch.device, min_calls: int = 2) -> None:
        """One window; the answer of its last call is checked. No call can know that it is the last."""
        watch = self.watch

        def before() -> None:
            self._turn += 1
            if watch is not None:
                watch.before(self._used)

        def after(result: object) -> None:
            if watch is not None:
                assert isinstance(result, Tensor)
                watch.after(self._used, result)

        done = window(
            lambda: self.calls[self._used](),
            seconds=seconds,
            min_calls=min_calls,
            before=before,
            after=after,
            device=device,
        )
        try:
            if watch is not None:
                watch.check(self._used)
        except gate.Refused as error:
            self.refused = str(error)
        self.windows.append(done)

    @property
    def _used(self) -> int:
        return self._turn % len(self.calls)

    def warm_up(self, device: torch.device) -> None:
        """Every call once, unrecorded."""
        self.measure(seconds=0.0, device=device, min_calls=len(self.calls) + 1)
        self.windows.pop()

    def move(self, device: torch.device) -> None:
        """Prepares the calls on the moved inputs and warms them up."""
        if self.renew is not None:
            self.calls = self.renew()
            if self.watch is not None:
                self.watch.forget()
            self.warm_up(device)

    def samples(self) -> list[Sample]:
        """The windows as they go into the record."""
        return [Sample(w.median_s, w.best_s, w.calls, w.quiet, w.cpu_s) for w in self.windows]

    @property
    def awake(self) -> float:
        """Median share of timed seconds in which the calling thread ran."""
        shares = sorted(w.awake for w in self.windows if w.quiet) or sorted(w.awake for w in self.windows)
        return shares[len(shares) // 2] if shares else 1.0


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: rounds wanted with a quiet window for everybody.
        max_rounds: stop here on a machine that is never quiet.
        seconds: of a window.
    """

    rounds: int = 7
    max_rounds: int = 12
    seconds: float = 0.35


def interleave(
    contenders: list[Contender],
    effort: Effort,
    *,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
    relocate: Callable[[], None] | None = None,
    deadline: float = math.inf,
) -> None:
    """Gives every contender its windows.

    Args:
        contenders: what to time; warmed up here.
        effort: how long.
        device: of the tensors.
        progress: called with (round, rounds) after each round.
        relocate: moves the inputs to other memory, between rounds. Where pages happen to lie is worth up to a tenth
            of a memory-bound call, and would else be the same for a whole run.
        deadline: of `time.perf_counter`; no round is begun that would end after it, but the first.
    """
    for contender in contenders:
        contender.warm_up(device)
    order = random.Random(0)
    begin = time.perf_counter()
    for number in range(effort.max_rounds):
        if number and (time.perf_counter() - begin) * (number + 1) / number > deadline - begin:
            break
        running = [c for c in contenders if not c.refused]
        if relocate is not None and number:
            relocate()
            for contender in running:
                contender.move(device)
        order.shuffle(running)
        for contender in running:
            contender.measure(seconds=effort.seconds, device=device)
        if progress is not None:
            progress(min(number + 1, effort.rounds), effort.rounds)
        if all(sum(w.quiet for w in c.windows) >= effort.rounds for c in running):
            break

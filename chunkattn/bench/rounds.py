"""Interleaved rounds: every contender gets one window a round, in an order drawn anew each round.

A drift of the machine then hits all of them alike, and a ratio of two providers is taken round by round.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from chunkattn.bench import gate
from chunkattn.bench.record import Sample
from chunkattn.bench.timing import Window, window


@dataclass
class Contender:
    """Something that is timed.

    Attributes:
        name: its key.
        calls: one prepared call an input set; calls rotate over them so that caches are cold.
        verified: for each set the output that passed the gate; empty for limits, which have no answer to check.
        windows: one a round.
        awake: of each window.
        refused: set when a timed call gave another answer than the verified one; no more windows then.
    """

    name: str
    calls: list[Callable[[], object]]
    verified: list[Tensor] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    refused: str = ""
    _turn: int = 0
    _used: int = 0
    _last: list[Tensor | None] = field(default_factory=list)

    def run(self) -> object:
        """The next call of the rotation."""
        self._used = self._turn % len(self.calls)
        self._turn += 1
        return self.calls[self._used]()

    def poison(self) -> None:
        """Fills the output that the coming call will write with NaN, so that a call that does nothing shows."""
        if not self._last:
            self._last = [None] * len(self.calls)
        target = self._last[self._turn % len(self.calls)]
        if target is not None:
            target.fill_(float("nan"))

    def keep(self, result: object) -> None:
        """Remembers where a call wrote."""
        if self.verified and isinstance(result, Tensor):
            self._last[self._used] = result

    def measure(self, *, seconds: float, device: torch.device) -> None:
        """One window; then one more call, drawn by lot, is compared with the verified output."""
        checked = bool(self.verified)
        self.windows.append(
            window(
                self.run,
                seconds=seconds,
                before=self.poison if checked else None,
                after=self.keep if checked else None,
                device=device,
            )
        )
        if not checked:
            return
        last = self._last[self._used]
        try:
            if last is not None:
                gate.check_same(last, self.verified[self._used])
        except gate.Refused as error:
            self.refused = f"a timed call answered otherwise than the checked one: {error}"

    def samples(self) -> list[Sample]:
        """The windows as they go into the record."""
        return [Sample(w.median_s, w.best_s, w.calls, w.quiet) for w in self.windows]

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
) -> None:
    """Gives every contender its windows.

    Args:
        contenders: what to time; warmed up here.
        effort: how long.
        device: of the tensors.
        progress: called with (round, rounds) after each round.
    """
    for contender in contenders:
        for _ in range(len(contender.calls) + 1):
            contender.run()
    order = random.Random(0)
    for number in range(effort.max_rounds):
        running = [c for c in contenders if not c.refused]
        order.shuffle(running)
        for contender in running:
            contender.measure(seconds=effort.seconds, device=device)
        if progress is not None:
            progress(min(number + 1, effort.rounds), effort.rounds)
        if all(sum(w.quiet for w in c.windows) >= effort.rounds for c in running):
            break

"""Finds the fastest of some candidates on a noisy machine, and takes it over the default only where that is certain.

Two passes. The first halves the field in interleaved rounds until a few are left. Whoever wins among many wins partly
by luck, or because it suits just these batches. So its times are then thrown away: the second pass measures the
finalists on other batches of the kind, beside the default taken twice. Two takes of the same thing differ by the noise
alone; a finalist has to beat the default by more than that, in nearly every round, and must not lose on any batch.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

LEAST_GAIN = 0.02  # less is not worth an entry
MOST_LOSS = 0.02  # on one batch
LEAST_SPREAD = 0.01  # no clock is better
_FINALISTS = 2
_SCREENING_ROUNDS = 3
_ROUNDS = 9
_LOSSES = 1  # rounds that an accepted finalist may lose
_MAD_TO_SIGMA = 1.4826


class Refused(Exception):
    """A candidate's answer is wrong, or it does not run."""


class OutOfTime(Exception):
    """No time is left for what was asked for."""


Measure = Callable[[int, int], float]
"""Seconds of a candidate on a case, once. Raises `Refused`, or `OutOfTime`."""


@dataclass(frozen=True)
class Verdict:
    """What a search found.

    Attributes:
        winner: number of the candidate, 0 for the default.
        gain: time of the default divided by the winner's in the second pass; 1 for the default.
        spread: relative spread of the second pass; 0 without one.
        reason: in a few words.
        refused: candidates that gave wrong answers, with the reason.
        complete: False where time ran out before the second pass had all its rounds.
    """

    winner: int
    gain: float
    spread: float
    reason: str
    refused: dict[int, str] = field(default_factory=dict)
    complete: bool = True

    @classmethod
    def cut_short(cls, refused: dict[int, str]) -> Verdict:
        """None, for want of time."""
        return cls(0, 1.0, 0.0, "time ran out before it was certain", refused, complete=False)


def least_measurements(num_candidates: int, num_cases: int) -> int:
    """What no search can do without, whoever is fast; far fewer than it takes to take one for faster."""
    return _SCREENING_ROUNDS * num_candidates * num_cases if num_candidates > 1 else 0


@dataclass
class Search:
    """One search.

    Attributes:
        measure: times a candidate on a case.
        num_candidates: the default is number 0.
        num_cases: batches of the first pass.
        renew: prepares other batches of the same kind for the second pass and returns how many.
        deadline: on the clock of `clock`; the search ends soon after it.
        progress: called with the share of the work that is done.
        clock: seconds.
        seed: of the order within rounds.
    """

    measure: Measure
    num_candidates: int
    num_cases: int
    renew: Callable[[], int] | None = None
    deadline: float = math.inf
    progress: Callable[[float], None] = lambda share: None
    clock: Callable[[], float] = time.monotonic
    seed: int = 0
    _refused: dict[int, str] = field(default_factory=dict)

    def run(self) -> Verdict:
        """Both passes.

        Raises:
            Refused: the default itself is wrong.
        """
        self._order = random.Random(self.seed)
        try:
            return self._run()
        except OutOfTime:
            return Verdict.cut_short(self._refused)

    def _run(self) -> Verdict:
        finalists = self._screen()
        if not finalists:
            reason = "nothing was faster" if self.num_candidates > 1 else "there is nothing else"
            return Verdict(0, 1.0, 0.0, reason, self._refused)
        return self._confirm(finalists)

    def _require_time(self) -> None:
        if self.clock() > self.deadline:
            raise OutOfTime

    def _screen(self) -> list[int]:
        """The fastest few that seem faster than the default."""
        alive = list(range(1, self.num_candidates))
        logs: dict[int, list[float]] = {candidate: [] for candidate in alive}
        stages = max(1, math.ceil(math.log2(max(len(alive), 1) / _FINALISTS)) + 1) if alive else 0
        for stage in range(stages):
            for number in range(_SCREENING_ROUNDS):
                if not alive:
                    break
                self._require_time()
                ratios = self._round([0, *alive])
                alive = [candidate for candidate in alive if candidate not in self._refused]
                for candidate in alive:
                    logs[candidate].append(_mean(ratios[candidate]))
                self.progress(0.6 * (stage + (number + 1) / _SCREENING_ROUNDS) / stages)
            alive.sort(key=lambda c: -median(logs[c]) if logs[c] else math.inf)
            keep = max(_FINALISTS, len(alive) // 2)
            alive = [c for c in alive[:keep] if logs[c] and median(logs[c]) > 0]
        return alive[:_FINALISTS]

    def _confirm(self, finalists: Sequence[int]) -> Verdict:
        """The second pass."""
        if self.renew is not None:
            self.num_cases = self.renew()
        logs: dict[int, list[list[float]]] = {finalist: [] for finalist in finalists}
        twins: list[float] = []
        for number in range(_ROUNDS):
            self._require_time()
            alive = [finalist for finalist in finalists if finalist not in self._refused]
            ratios = self._round([0, *alive, -1])  # -1: the default again
            twins.append(_mean(ratios[-1]))
            for finalist in alive:
                if finalist not in self._refused:
                    # Of both takes of the default.
                    both = [log - twin / 2 for log, twin in zip(ratios[finalist], ratios[-1])]
                    logs[finalist].append(both)
            self.progress(0.6 + 0.4 * (number + 1) / _ROUNDS)
        noise = max(abs(median(twins)), _sigma(twins))
        spread = max(noise, LEAST_SPREAD)
        best = Verdict(0, 1.0, spread, f"no gain everywhere beyond the spread of {spread:.1%}", self._refused)
        for finalist in finalists:
            if finalist in self._refused:
                continue
            verdict = self._judge(finalist, logs[finalist], noise)
            if verdict is not None and verdict.gain > best.gain:
                best = verdict
        return best

    def _judge(self, finalist: int, rounds: Sequence[Sequence[float]], noise: float) -> Verdict | None:
        means = [_mean(one) for one in rounds]
        spread = max(noise, _sigma(means), LEAST_SPREAD)
        gain = median(means)
        if gain <= max(spread, LEAST_GAIN) or sum(mean <= 0 for mean in means) > _LOSSES:
            return None
        for case in range(self.num_cases):
            logs = [one[case] for one in rounds]
            if median(logs) < -MOST_LOSS:
                return None
        return Verdict(finalist, math.exp(gain), spread, "faster beyond the spread", self._refused)

    def _round(self, contenders: Sequence[int]) -> dict[int, list[float]]:
        """Log of the default's time by each contender's, by case; contenders take turns in an order drawn anew."""
        ratios: dict[int, list[float]] = {contender: [] for contender in contenders}
        for case in range(self.num_cases):
            order = [contender for contender in contenders if contender not in self._refused]
            self._order.shuffle(order)
            seconds: dict[int, float] = {}
            for contender in order:
                try:
                    seconds[contender] = self.measure(max(contender, 0), case)
                except Refused as error:
                    if contender <= 0:
                        raise
                    self._refused[contender] = str(error)
            for contender, taken in seconds.items():
                ratios[contender].append(math.log(seconds[0] / taken))
        return ratios


def _mean(logs: Sequence[float]) -> float:
    return sum(logs) / len(logs)


def _sigma(values: Sequence[float]) -> float:
    """Standard deviation, by the median absolute deviation: a few disturbed rounds do not count."""
    middle = median(values)
    return _MAD_TO_SIGMA * median(abs(value - middle) for value in values)

"""Times settings of a backend on batches of random data, and believes no time without a right answer.

Nothing of the user's is touched: queries, pools and outputs are made here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import chunkattn
from chunkattn.bench import gate
from chunkattn.bench.case import BenchCase
from chunkattn.bench.inputs import input_sets
from chunkattn.bench.timing import window
from chunkattn.testing import AttentionInputs
from chunkattn.tuning.search import OutOfTime, Refused

_MOST_SETS = 3
_MAX_BYTES = 1 << 30


@dataclass
class _Step:
    """One set of inputs, and what the right answer is: the default's, proven on the first set."""

    inputs: AttentionInputs
    out: Tensor
    answer: gate.Expected | None = None

    @classmethod
    def of(cls, inputs: AttentionInputs) -> _Step:
        rows, heads, width = inputs.q.shape[0], inputs.q.shape[1], inputs.v_cache.shape[3]
        return cls(inputs, inputs.q.new_full((rows, heads, width), math.nan))

    def call(self, backend: str) -> None:
        chunkattn.attention(*self.inputs.batch(), **self.inputs.options(), out=self.out, backend=backend)


@dataclass
class Trials:
    """Settings of one backend, on some cases.

    Attributes:
        backend: its name; `module` its module.
        cases: batches of the first generation.
        others: of the second; the same where there are none.
        settings: candidates, the default first.
        seconds: of a timed window; at least one call.
        device: "cpu" or "cuda".
        deadline: on the monotonic clock; nothing is prepared or measured after it.
    """

    backend: str
    module: Any
    cases: Sequence[BenchCase]
    settings: Sequence[Mapping[str, int]]
    others: Sequence[BenchCase] = ()
    seconds: float = 0.02
    device: str = "cpu"
    deadline: float = math.inf
    _steps: list[list[_Step]] = field(default_factory=list)
    _turn: int = 0
    _generation: int = 0
    _admitted: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> int:
        """The next generation of batches, with other data on other pages: where pages happen to lie is worth up to a
        tenth of a memory-bound call.

        Returns:
            How many batches there are.

        Raises:
            Refused: the default's answer is wrong.
            OutOfTime: the deadline is over.
        """
        self._generation += 1
        self._admitted.clear()
        self._steps.clear()  # one generation in memory at a time
        cases = self.others if self.others and self._generation > 1 else self.cases
        for case in cases:
            self._require_time()
            fresh = case.but(seed=case.seed + 104729 * self._generation)
            inputs = input_sets(fresh, self.device, most=_MOST_SETS, max_bytes=_MAX_BYTES)
            self._steps.append([_Step.of(one) for one in inputs])
            for number, step in enumerate(self._steps[-1]):
                if number == 0:
                    self._prove(step)
                with self.module.with_settings(self.settings[0]):
                    step.call(self.backend)
                step.answer = _answer(step.out)
        return len(cases)

    def _require_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise OutOfTime

    def _prove(self, step: _Step) -> None:
        """The default against eager PyTorch, every row; its answers are what others are compared with from then on."""
        step.call("reference")
        expected = _answer(step.out)
        step.out.fill_(math.nan)
        with self.module.with_settings(self.settings[0]):
            step.call(self.backend)
        try:
            gate.check(step.out, expected)
        except gate.Refused as error:
            raise Refused(f"the default's answer is wrong: {error}") from None

    def measure(self, candidate: int, case: int) -> float:
        """Seconds of a call, the median of a window; its last answer is compared, all of it.

        Raises:
            Refused: a wrong answer, or an error of the backend.
            OutOfTime: the deadline is over.
        """
        self._require_time()
        steps = self._steps[case]
        last = steps[0]

        def before() -> None:
            nonlocal last
            self._turn += 1
            last = steps[self._turn % len(steps)]
            last.out.fill_(math.nan)

        with self.module.with_settings(self.settings[candidate]):
            try:
                if (candidate, case) not in self._admitted:
                    self._admit(candidate, case)
                done = window(
                    lambda: last.call(self.backend),
                    seconds=self.seconds,
                    min_calls=1,
                    before=before,
                    device=torch.device(self.device),
                )
                assert last.answer is not None
                gate.check(last.out, last.answer)
            except gate.Refused as error:
                raise Refused(str(error)) from None
            except (RuntimeError, ValueError) as error:
                raise Refused(f"it failed: {error}") from None
        return done.median_s

    def _admit(self, candidate: int, case: int) -> None:
        """Every set once, untimed: first-use costs, and answers to each."""
        for step in self._steps[case]:
            step.out.fill_(math.nan)
            step.call(self.backend)
            assert step.answer is not None
            gate.check(step.out, step.answer)
        self._admitted.add((candidate, case))


def _answer(out: Tensor) -> gate.Expected:
    return gate.Expected(torch.arange(len(out)), out.cpu().double())

"""Timed calls are not taken on trust: the queries change before each one, and answers are compared afterwards.

Before a call the sign of a run of query rows, drawn by lot, is flipped. Rows are independent, so the right answer is
known row by row from the two outputs that passed the gate, of q and of -q. An answer kept from an earlier call, work
skipped while timed, or a buffer never written does not match.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from chunkattn.bench import gate
from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers.base import Call
from chunkattn.testing import AttentionInputs


@dataclass
class Step:
    """Inputs whose query rows change sign; shared by all providers.

    Attributes:
        inputs: the tensors; q is changed in place.
        expected, expected_negated: oracle rows for q and for -q.
        flipped: bool [T], rows whose sign is turned.
    """

    inputs: AttentionInputs
    expected: gate.Expected
    expected_negated: gate.Expected
    flipped: Tensor

    @classmethod
    def of(cls, inputs: AttentionInputs, case: BenchCase) -> Step:
        """Asks the oracle: all rows of q (a sample where that would take minutes), a sample of -q."""
        expected = gate.expect(inputs, case)
        inputs.q.neg_()
        negated = gate.sample(inputs, pieces=3, rows=4)
        inputs.q.neg_()
        return cls(inputs, expected, negated, torch.zeros(inputs.q.shape[0], dtype=torch.bool, device=inputs.q.device))

    def flip(self, source: random.Random) -> None:
        """Turns the sign of up to a quarter of the rows, at least of one."""
        tokens = len(self.flipped)
        if not tokens:
            return
        begin = source.randrange(tokens)
        end = min(tokens, begin + 1 + source.randrange(max(1, tokens // 4)))
        self.inputs.q[begin:end].neg_()
        self.flipped[begin:end] ^= True

    def move(self) -> None:
        """Copies the pools to other memory."""
        self.inputs = dataclasses.replace(
            self.inputs, k_cache=self.inputs.k_cache.clone(), v_cache=self.inputs.v_cache.clone()
        )

    def restore(self) -> None:
        """Makes q what it was."""
        self.inputs.q[self.flipped] = -self.inputs.q[self.flipped]
        self.flipped.zero_()


@dataclass
class Watch:
    """What one provider's calls must answer, one entry a step."""

    steps: list[Step]
    plain: list[Tensor] = field(default_factory=list)
    negated: list[Tensor] = field(default_factory=list)
    error: float = 0.0
    _last: list[Tensor | None] = field(default_factory=list)
    _source: random.Random = field(default_factory=random.SystemRandom)

    def admit(self, step: Step, call: Call) -> None:
        """Runs a prepared call on q and on -q, through the gate.

        Raises:
            Refused: a wrong answer.
        """
        step.restore()
        out = call()
        self.error = max(self.error, gate.check(out, step.expected))
        self.plain.append(out.clone())
        step.inputs.q.neg_()
        try:
            out = call()
            self.error = max(self.error, gate.check(out, step.expected_negated))
            self.negated.append(out.clone())
        finally:
            step.inputs.q.neg_()
        self._last.append(None)

    def before(self, index: int) -> None:
        """Changes a step's queries, and spoils the buffer that an earlier call on it wrote."""
        self.steps[index].flip(self._source)
        last = self._last[index]
        if last is not None:
            last.fill_(float("nan"))

    def after(self, index: int, out: Tensor) -> None:
        """Remembers where a call wrote."""
        self._last[index] = out

    def forget(self) -> None:
        """The calls were prepared anew and write elsewhere."""
        self._last = [None] * len(self.steps)

    def check(self, index: int) -> None:
        """Compares the last answer for a step.

        Raises:
            Refused: it is not the answer to the queries as they were.
        """
        out = self._last[index]
        if out is None:
            return
        flipped = self.steps[index].flipped[:, None, None]
        known = torch.where(flipped, self.negated[index], self.plain[index])
        try:
            gate.check(out, gate.Expected(torch.arange(len(known)), known.cpu().double()))
        except gate.Refused as error:
            raise gate.Refused(f"a timed call answered otherwise than the checked one: {error}") from None

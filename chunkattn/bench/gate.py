"""No time for a wrong answer: outputs are compared with the float64 oracle before and during timing."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from chunkattn.bench.case import BenchCase
from chunkattn.bench.work import count
from chunkattn.testing import AttentionInputs, row_budget, row_errors

SLACK = 2.0
"""Row budgets of `chunkattn.testing` that a provider may use.

The operators' own tests allow one. Peers round P or use shorter exponentials by design; what each one uses is printed
with its time. A wrong mask, a dropped key or a shifted row is off by hundreds.
"""

_WHOLE_EXPS = 300_000_000  # above this many exponentials a sample of rows is checked instead of all


class Refused(Exception):
    """A provider's output is wrong; the message says where and by how much."""


@dataclass(frozen=True)
class Expected:
    """What some token rows of a step must be.

    Attributes:
        rows: int64 [n] token rows.
        out: float64 [n, Hq, Dv].
    """

    rows: Tensor
    out: Tensor


def expect(inputs: AttentionInputs, case: BenchCase) -> Expected:
    """The oracle's output for all rows, or for a fresh sample of them where all would take minutes."""
    if count(case).exps > _WHOLE_EXPS:
        return sample(inputs, pieces=6, rows=8)
    return Expected(torch.arange(inputs.q.shape[0]), inputs.expected()[0])


def sample(inputs: AttentionInputs, *, pieces: int, rows: int) -> Expected:
    """The oracle's output for runs of rows drawn anew on each call, the first and last row of the step always in."""
    source = random.SystemRandom()
    starts = inputs.cu_seqlens_q.tolist()
    lengths = [end - begin for begin, end in itertools.pairwise(starts)]
    busy = [r for r, q_len in enumerate(lengths) if q_len]
    if not busy:
        return Expected(torch.empty(0, dtype=torch.int64), torch.empty(0, *inputs.q.shape[1:], dtype=torch.float64))
    size = min(rows, lengths[busy[0]]), min(rows, lengths[busy[-1]])
    cuts = {(busy[0], 0, size[0]), (busy[-1], lengths[busy[-1]] - size[1], lengths[busy[-1]])}
    for _ in range(4 * pieces):
        if len(cuts) >= pieces:
            break
        request = source.choice(busy)
        first = source.randrange(max(1, lengths[request] - rows + 1))
        cuts.add((request, first, min(first + rows, lengths[request])))
    ordered = sorted(cuts)
    picked = torch.cat([torch.arange(starts[r] + first, starts[r] + end) for r, first, end in ordered])
    return Expected(picked, inputs.recut(ordered).expected()[0])


def check(out: Tensor, expected: Expected) -> float:
    """Compares a provider's output; returns its worst row error in row budgets.

    Raises:
        Refused: a wrong shape, a NaN, or a row off by more than `SLACK` budgets.
    """
    if tuple(out.shape[1:]) != tuple(expected.out.shape[1:]) or (
        len(expected.rows) and out.shape[0] <= int(expected.rows.max())
    ):
        raise Refused(f"out has shape {list(out.shape)}")
    actual = out.detach().cpu()[expected.rows]
    if actual.numel() == 0:
        return 0.0
    if not torch.isfinite(actual).all():
        row = int((~torch.isfinite(actual)).flatten(1).any(1).nonzero()[0])
        raise Refused(f"out holds NaN or infinity, first in token {int(expected.rows[row])}")
    errors = row_errors(actual, expected.out) / row_budget(out.dtype)
    worst = float(errors.max())
    if not worst <= SLACK:
        token, head = (int(i) for i in (errors == errors.max()).nonzero()[0])
        raise Refused(
            f"{int((errors > SLACK).sum())} of {errors.numel()} rows are wrong; worst is token "
            f"{int(expected.rows[token])} head {head}, off by {worst:.3g} row budgets (allowed {SLACK:g})"
        )
    return worst

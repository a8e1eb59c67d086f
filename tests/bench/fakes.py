"""Providers with something wrong with them, and one with nothing wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import chunkattn
from chunkattn.bench.case import BenchCase, Heads
from chunkattn.bench.providers.base import Call
from chunkattn.testing import AttentionInputs

SMALL = BenchCase("fakes", "mixed", ((1, 40, 30), (3, 1, 50)), Heads(4, 2, 64, 64), page_size=16)
"""A mixed batch that an honest provider does in well under a millisecond."""


@dataclass(frozen=True)
class Fake:
    """A provider made of one function."""

    LABEL: str
    make: Callable[[AttentionInputs], Call]
    INSTALL: str = ""
    DEVICES: tuple[str, ...] = ("cpu",)
    lacks: str | None = None

    def missing(self) -> str | None:
        return self.lacks

    def refuses(self, case: BenchCase) -> str | None:
        return None

    def prepare(self, inputs: AttentionInputs) -> Call:
        return self.make(inputs)


def attend(inputs: AttentionInputs) -> torch.Tensor:
    """The right answer."""
    out = chunkattn.attention(*inputs.batch(), **inputs.options())
    assert isinstance(out, torch.Tensor)
    return out


def honest(inputs: AttentionInputs) -> Call:
    return lambda: attend(inputs)


def zeros(inputs: AttentionInputs) -> Call:
    return lambda: torch.zeros_like(inputs.q)


def nothing_written(inputs: AttentionInputs) -> Call:
    return lambda: torch.full_like(inputs.q, float("nan"))


def one_nan(inputs: AttentionInputs) -> Call:
    def run() -> torch.Tensor:
        out = attend(inputs)
        out[-1, -1, -1] = float("nan")
        return out

    return run


def mean_of_v(inputs: AttentionInputs) -> Call:
    """Every row is the mean of its request's visible values: right where the scores are all alike."""

    def run() -> torch.Tensor:
        flat = AttentionInputs(**{**vars(inputs), "q": torch.zeros_like(inputs.q)})
        return attend(flat)

    return run


def permuted_rows(inputs: AttentionInputs) -> Call:
    return lambda: attend(inputs).roll(1, 0)


def swapped_heads(inputs: AttentionInputs) -> Call:
    return lambda: attend(inputs).flip(1)


def last_row_wrong(inputs: AttentionInputs) -> Call:
    """One token of a whole step is off by a twentieth."""

    def run() -> torch.Tensor:
        out = attend(inputs)
        out[-1] *= 1.05
        return out

    return run


def not_causal(inputs: AttentionInputs) -> Call:
    def run() -> torch.Tensor:
        out = chunkattn.attention(*inputs.batch(), **{**inputs.options(), "causal": False})
        assert isinstance(out, torch.Tensor)
        return out

    return run


def sleeper(inputs: AttentionInputs) -> Call:
    def run() -> torch.Tensor:
        time.sleep(0.01)
        return attend(inputs)

    return run


def cacher(inputs: AttentionInputs) -> Call:
    """Works while it is being checked, and from its third call on returns a copy of its last answer."""
    answers: list[torch.Tensor] = []

    def run() -> torch.Tensor:
        if len(answers) < 2:
            answers.append(attend(inputs))
        return answers[-1].clone()

    return run


def keyed_cacher(inputs: AttentionInputs) -> Call:
    """Keeps answers by the bits of q's first row: most changes of q pass it by."""
    answers: dict[bytes, torch.Tensor] = {}

    def run() -> torch.Tensor:
        key = bytes(inputs.q[0].flatten().view(torch.uint8).tolist())
        if key not in answers:
            answers[key] = attend(inputs)
        return answers[key].clone()

    return run


def buffer_keeper(inputs: AttentionInputs) -> Call:
    """From its third call on returns its buffer without writing it."""
    out = torch.empty_like(inputs.q)
    calls = 0

    def run() -> torch.Tensor:
        nonlocal calls
        calls += 1
        return out.copy_(attend(inputs)) if calls < 3 else out

    return run


def skipper(inputs: AttentionInputs) -> Call:
    """Works while it is being checked and skips the decodes from its third call on."""
    calls = 0
    kept = attend(inputs)

    def run() -> torch.Tensor:
        nonlocal calls
        calls += 1
        out = attend(inputs)
        if calls > 2:
            out[40:] = 0.5 * kept[40:]
        return out

    return run

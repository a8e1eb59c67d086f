"""The plan made by the CUDA kernel is the host's, word for word."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import astuple, replace

import pytest
import torch
from plan_batches import BATCHES, SPECS, Lengths, random_lengths, random_spec

from chunkattn.args import PlanArgs
from chunkattn.planning import work
from chunkattn.planning.work import WorkSpec

from . import cuda_backend
from .session import Session

cuda_backend.skip_unless_available()

from chunkattn.backends.cuda import backend  # noqa: E402


@pytest.fixture(params=cuda_backend.RUNS, autouse=True)
def emulated_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    yield from cuda_backend.open_session(request.param, monkeypatch)


def check(spec: WorkSpec, lengths: Lengths) -> None:
    cu_seqlens_q = torch.tensor(lengths.cu_seqlens_q, dtype=torch.int32)
    seq_lens = torch.tensor(lengths.kv_lens, dtype=torch.int32)
    words = torch.full((work.plan_words(len(seq_lens)) + 1,), -7, dtype=torch.int64)
    facts = dict.fromkeys(PlanArgs._fields, 0)
    facts |= {"cu_seqlens_q": cu_seqlens_q, "seq_lens": seq_lens, "words": words[:-1], "dtype": torch.bfloat16}
    fields = tuple(int(value) for value in astuple(spec))
    backend.launch_plan(PlanArgs(**{**facts, "layout": "NHD", "backend": None}), fields)
    expected = work.make_plan(spec, lengths.cu_seqlens_q, lengths.kv_lens)
    assert words[-1] == -7
    got = words[:-1].tolist()
    wrong = [place for place, (one, other) in enumerate(zip(got, expected, strict=True)) if one != other]
    assert not wrong, f"{spec}, {lengths}: words {wrong[:8]} are {[got[w] for w in wrong[:8]]}"


@pytest.mark.parametrize("spec", SPECS)
def test_corners(spec: WorkSpec) -> None:
    for lengths in BATCHES.values():
        check(spec, lengths)


def test_random_batches_and_specs(request: pytest.FixtureRequest) -> None:
    rng = random.Random(request.node.name)
    for _ in range(40):
        most, longest = rng.choice([(10, 3000), (300, 200_000), (40, 2**30)])
        check(random_spec(rng), random_lengths(rng, most_requests=most, longest_kv=longest, longest_q=4000))


def test_thousands_of_requests() -> None:
    """Several rounds of the CTA, their borders, and one huge request among tiny ones."""
    rng = random.Random(1)
    spec = replace(SPECS[6], num_workers=132)
    check(spec, random_lengths(rng, most_requests=4000, longest_kv=100_000, longest_q=300))
    check(spec, Lengths.of([1] * 1500 + [3] + [1] * 1500, [3] * 1500 + [1_000_000] + [2] * 1500))
    for count in (31, 32, 33, 255, 256, 257, 511, 512, 513, 1025):
        check(spec, Lengths.of([1] * count, [100] * count))


def test_totals_beyond_32_bits() -> None:
    lengths = Lengths.of([4] * 5000, [2**31 - 1] * 5000)
    check(WorkSpec(128, 8, num_splits=2**16), lengths)
    check(WorkSpec(128, 8, decode_cost=160, split_cost=128, num_workers=132), lengths)

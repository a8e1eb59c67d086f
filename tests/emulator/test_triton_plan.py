"""The plan made by the Triton kernel is the host's, word for word."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from plan_batches import BATCHES, SPECS, Lengths, random_lengths, random_spec

from chunkattn.args import PlanArgs
from chunkattn.planning import work
from chunkattn.planning.work import WorkSpec

on_archs = pytest.mark.parametrize(
    "arch", [pytest.param(arch, marks=pytest.mark.emulated(arch=arch), id=f"sm_{arch}") for arch in (80, 90)]
)
in_schedules = pytest.mark.parametrize("emulator_seed", [0, 1, 2], indirect=True)


def device_plan(spec: WorkSpec, lengths: Lengths) -> list[int]:
    from chunkattn.backends.triton import plan

    cu_seqlens_q = torch.tensor(lengths.cu_seqlens_q, dtype=torch.int32)
    seq_lens = torch.tensor(lengths.kv_lens, dtype=torch.int32)
    words = torch.full((work.plan_words(len(seq_lens)) + 1,), -7, dtype=torch.int64)
    facts = dict.fromkeys(PlanArgs._fields)
    facts |= {"cu_seqlens_q": cu_seqlens_q, "seq_lens": seq_lens, "words": words[:-1]}
    plan.launch(PlanArgs(**facts), spec)
    assert words[-1] == -7
    return words[:-1].tolist()


def check(spec: WorkSpec, lengths: Lengths) -> None:
    got = device_plan(spec, lengths)
    expected = work.make_plan(spec, lengths.cu_seqlens_q, lengths.kv_lens)
    wrong = [place for place, (one, other) in enumerate(zip(got, expected, strict=True)) if one != other]
    assert not wrong, f"{spec}, {lengths}: words {wrong[:8]} are {[got[w] for w in wrong[:8]]}"


@in_schedules
@on_archs
def test_corners(arch, emulator_seed):
    for spec in SPECS:
        for lengths in BATCHES.values():
            check(spec, lengths)


@on_archs
def test_random_batches_and_specs(arch):
    rng = random.Random(arch)
    for _ in range(60):
        most, longest = rng.choice([(10, 3000), (300, 200_000), (40, 2**30)])
        check(random_spec(rng), random_lengths(rng, most_requests=most, longest_kv=longest, longest_q=4000))


@in_schedules
@on_archs
def test_thousands_of_requests(arch, emulator_seed):
    """Several blocks of requests, and one huge request among tiny ones."""
    rng = random.Random(1)
    spec = replace(SPECS[6], num_workers=132)
    check(spec, random_lengths(rng, most_requests=4000, longest_kv=100_000, longest_q=300))
    check(spec, Lengths.of([1] * 1500 + [3] + [1] * 1500, [3] * 1500 + [1_000_000] + [2] * 1500))
    for count in (255, 256, 257, 1023, 1024, 1025, 2048):
        check(spec, Lengths.of([1] * count, [100] * count))


@on_archs
def test_totals_beyond_32_bits(arch):
    lengths = Lengths.of([4] * 5000, [2**31 - 1] * 5000)
    check(WorkSpec(128, 8, num_splits=2**16), lengths)
    check(WorkSpec(128, 8, decode_cost=160, split_cost=128, num_workers=132), lengths)

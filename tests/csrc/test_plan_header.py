"""The C++ plan (`sched/plan.h`) and the Python one (`chunkattn.planning.work`) agree in every word, for any spec."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import astuple
from pathlib import Path

import pytest
from plan_batches import BATCHES, SPECS, Lengths, random_lengths, random_spec

from chunkattn.planning import work
from chunkattn.planning.work import WorkSpec

INCLUDE = Path(__file__).parents[2] / "csrc" / "include"
pytestmark = pytest.mark.skipif(shutil.which("g++") is None or not INCLUDE.is_dir(), reason="no compiler or no sources")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    built = tmp_path_factory.mktemp("plan") / "plan_words"
    source = Path(__file__).with_name("plan_words.cpp")
    subprocess.run(["g++", "-std=c++17", "-O1", "-Wall", "-Werror", f"-I{INCLUDE}", source, "-o", built], check=True)
    return built


def agree(program: Path, cases: list[tuple[WorkSpec, Lengths]]) -> None:
    given = []
    for spec, lengths in cases:
        numbers = (len(lengths.q_lens), *astuple(spec), *lengths.cu_seqlens_q, *lengths.kv_lens)
        given.append(" ".join(str(int(number)) for number in numbers))
    done = subprocess.run([program], input="\n".join(given), capture_output=True, text=True, check=True)
    rows = done.stdout.splitlines()
    assert len(rows) == len(cases)
    for row, (spec, lengths) in zip(rows, cases, strict=True):
        *words, bound = map(int, row.split())
        assert words == work.make_plan(spec, lengths.cu_seqlens_q, lengths.kv_lens)
        longest = max(lengths.kv_lens, default=0)
        assert bound == work.max_partial_rows(spec, sum(lengths.q_lens), longest)


def test_corners(program):
    agree(program, [(spec, lengths) for spec in SPECS for lengths in BATCHES.values()])


def test_random_batches_and_specs(program):
    rng = random.Random(0)
    cases = []
    for _ in range(400):
        most, longest = rng.choice([(10, 3000), (300, 200_000), (40, 2**30)])
        cases.append((random_spec(rng), random_lengths(rng, most_requests=most, longest_kv=longest, longest_q=4000)))
    agree(program, cases)


def test_totals_beyond_32_bits(program):
    lengths = Lengths.of([4] * 5000, [2**31 - 1] * 5000)
    agree(program, [(WorkSpec(128, 8, num_splits=2**16), lengths), (WorkSpec(128, 8, decode_cost=160), lengths)])

"""Attention under pytest-benchmark, to compare two commits: see README.md beside this file."""

from __future__ import annotations

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

import chunkattn
from chunkattn.bench import cases, gate
from chunkattn.bench.case import BenchCase
from chunkattn.testing import build

CASES = [*cases.load("quick").cases, *cases.load("ragged").cases]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_attention(benchmark: BenchmarkFixture, case: BenchCase) -> None:
    inputs = build(case.attention_case(), poison="zero")
    out = torch.empty(*inputs.q.shape[:2], inputs.v_cache.shape[3], dtype=inputs.q.dtype)
    options = inputs.options()
    chunkattn.attention(*inputs.batch(), **options, out=out)
    gate.check(out, gate.sample(inputs, pieces=3, rows=4))
    benchmark(chunkattn.attention, *inputs.batch(), **options, out=out)


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3", "fp8_e5m2", "int8"])
def test_decode_by_kv_dtype(benchmark: BenchmarkFixture, kv_dtype: str) -> None:
    case = BenchCase("kv", "decode8@2048", ((8, 1, 2047),), kv_dtype=kv_dtype)
    inputs = build(case.attention_case(), poison="zero")
    benchmark(chunkattn.attention, *inputs.batch(), **inputs.options())

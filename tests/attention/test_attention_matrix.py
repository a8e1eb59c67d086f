"""Every pair of options, head dims, page sizes, head ratios, dtypes and batches against the float64 oracle."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from attention_matrix import FACTORS, covering_array, matrix

from chunkattn.testing import AttentionCase, assert_state_close, build, laws

FAST = matrix(seed=0)
FULL_SEEDS = range(1, 7)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Arrays of the long tier take seconds to make, so only that tier makes them."""
    if "full_case" in metafunc.fixturenames:
        wanted = "full" in (metafunc.config.option.markexpr or "")
        cases = [case for seed in FULL_SEEDS for case in matrix(seed)] if wanted else []
        metafunc.parametrize("full_case", cases, ids=str)


@lru_cache(maxsize=64)
def expected_state(case: AttentionCase) -> tuple[torch.Tensor, torch.Tensor]:
    return build(case).expected()


def test_array_covers_every_pair():
    rows = covering_array(FACTORS, seed=0)
    names = list(FACTORS)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            pairs = {(str(row[first]), str(row[second])) for row in rows}
            assert len(pairs) == len(FACTORS[first]) * len(FACTORS[second])


def check(case: AttentionCase, attend: laws.AttendInto) -> None:
    inputs = build(case)
    # Outputs lie transposed in memory and hold NaN before the call.
    out, lse = (buffer.transpose(0, 1).contiguous().transpose(0, 1) for buffer in inputs.empty_state())
    attend(inputs, out=out, lse=lse)
    assert_state_close((out, lse), expected_state(case), budget=case.row_budget, context=f"{case}: ")


@pytest.mark.parametrize("case", FAST, ids=str)
def test_matrix(case, attend):
    check(case, attend)


@pytest.mark.full
def test_matrix_full(full_case, attend):
    check(full_case, attend)

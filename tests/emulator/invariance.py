"""The laws of invariant mode for kernels in the emulator: those of tests/attention, on fewer tokens cut at fewer
places, because a chunk of one token costs a tile of rows. Keys still fill several splits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from chunkattn.testing import build, laws

sys.path.append(str(Path(__file__).parents[1] / "attention"))

from test_attention_laws import INVARIANT, LONG, PROMPTS

SHORT_PROMPTS = [case.but(q_lens=(70, 20), kv_lens=(70, 320)) for case in PROMPTS]
SHORT = LONG.but(name="splits", q_lens=(20, 9), kv_lens=(4200, 2100))


@pytest.mark.parametrize("case", INVARIANT, ids=str)
def test_invariant_rows_do_not_depend_on_neighbours(case, attend):
    laws.check_neighbours(attend, build(case), paddings=(37,))


@pytest.mark.parametrize("case", SHORT_PROMPTS, ids=str)
def test_invariant_rows_do_not_depend_on_chunking(case, attend):
    laws.check_chunking(attend, build(case), chunk_sizes=(1, 7, 64))


@pytest.mark.full
@pytest.mark.parametrize(
    "case",
    [
        SHORT,
        SHORT.but(name="splits fp32", dtype=torch.float32, head_dim=128),
        SHORT.but(name="splits fp16", dtype=torch.float16, head_dim=80),
        SHORT.but(name="splits int8", kv_dtype=torch.int8, scale_mode="head"),
        SHORT.but(name="splits wide group", num_q_heads=12),
        SHORT.but(name="splits windowed", window=(3000, -1), sinks=True),
    ],
    ids=str,
)
def test_invariant_rows_do_not_depend_on_chunking_full(case, attend):
    laws.check_chunking(attend, build(case), chunk_sizes=(1, 7))

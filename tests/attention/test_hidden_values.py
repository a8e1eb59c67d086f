"""A NaN or infinity in V reaches the rows that see its key and no other row, whatever rows share a tile with it."""

from __future__ import annotations

import math

import pytest
import torch

from chunkattn.testing import AttentionCase, assert_state_close, build
from chunkattn.testing.inputs import AttentionInputs

CHUNK = AttentionCase("chunk", (70, 3), (170, 33), num_q_heads=4, num_kv_heads=2, head_dim=32)
CASES = [
    CHUNK,
    CHUNK.but(name="invariant", invariant=True),
    CHUNK.but(name="few rows", q_lens=(3, 4, 2), kv_lens=(170, 33, 2), num_splits=2),
    CHUNK.but(name="window", q_lens=(70, 3), window=(40, -1)),
    CHUNK.but(name="both sides", causal=False, window=(20, 9), dtype=torch.float16, page_size=64),
    CHUNK.but(name="tree", tree=True, q_lens=(40, 4)),
    CHUNK.but(name="fp32", dtype=torch.float32, sinks=True),
    CHUNK.but(name="e4m3", kv_dtype=torch.float8_e4m3fn, scale_mode="token_head"),
    CHUNK.but(name="e5m2", kv_dtype=torch.float8_e5m2, scale_mode="head", head_dim=40),
]


def spoil(inputs: AttentionInputs) -> None:
    """Puts NaN, and infinities where V's dtype and the arithmetic have them, at keys among and before the new ones."""
    case = inputs.case
    values = [math.nan]
    if case.cache_dtype != torch.float8_e4m3fn and case.dtype != torch.float32:
        values += [math.inf, -math.inf]
    for request, (q_len, kv_len) in enumerate(zip(case.q_lens, case.kv_lens, strict=True)):
        places = {kv_len - 1, kv_len - (q_len + 1) // 2, max(kv_len - q_len - 19, 0)}
        for lane, position in enumerate(sorted(places)):
            page = int(inputs.block_table[request, position // case.page_size])
            value = torch.tensor(values[lane % len(values)]).to(case.cache_dtype)
            inputs.v_cache[page, position % case.page_size, lane % 2, 3 + lane].copy_(value)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_of_hidden_keys_do_not_matter(case, attend):
    inputs = build(case)
    spoil(inputs)
    expected = inputs.expected()
    spoilt = ~torch.isfinite(expected[0]).all(-1)
    assert spoilt.any()
    assert not spoilt.all()
    out, lse = inputs.empty_state()
    attend(inputs, out=out, lse=lse)
    assert_state_close((out, lse), expected, context=f"{case}: ")

"""Exact work counts against brute force over the oracle's sets of positions."""

from __future__ import annotations

import itertools

import pytest

from chunkattn.testing import flops, kv_bytes, visible_keys, visible_pairs, visible_positions


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("left", [-1, 0, 1, 3, 20])
@pytest.mark.parametrize("right", [-1, 0, 2, 20])
def test_counts_equal_brute_force(causal, left, right):
    for q_len, kv_len in itertools.product(range(7), range(9)):
        rows = [
            visible_positions(kv_len - q_len + r, kv_len - q_len, kv_len, causal=causal, window=(left, right))
            for r in range(q_len)
        ]
        assert visible_pairs(q_len, kv_len, causal=causal, window=(left, right)) == sum(map(len, rows))
        seen = set().union(*rows)
        assert visible_keys(q_len, kv_len, causal=causal, window=(left, right)) == len(seen)


def test_chunking_does_not_change_the_total():
    whole = visible_pairs(1000, 1000)
    assert whole == 1000 * 1001 // 2
    for chunk in (1, 7, 64, 512):
        ends = [*range(chunk, 1000, chunk), 1000]
        assert sum(visible_pairs(end - start, end) for start, end in zip([0, *ends], ends, strict=False)) == whole


def test_d43_flop_and_byte_counts():
    assert visible_pairs(4, 10) == 34
    assert flops([4], [10], num_q_heads=1, head_dim=8, head_dim_v=16) == 1632
    assert flops([1], [10], num_q_heads=1, head_dim=8) == 2 * 10 * 16
    assert flops([4], [10], num_q_heads=3, head_dim=8, causal=False) == 2 * 40 * 16 * 3
    assert kv_bytes([1, 0], [10, 50], num_kv_heads=2, head_dim=8, head_dim_v=16) == 10 * 2 * 24 * 2
    assert kv_bytes([4], [100], num_kv_heads=1, head_dim=8, window=(31, -1)) == 35 * 16 * 2
    assert kv_bytes([1], [10], num_kv_heads=1, head_dim=8, element_size=1, scale_bytes=8) == 10 * (16 + 8)


def test_negative_lengths_are_refused():
    with pytest.raises(ValueError, match="q_len, kv_len: expected lengths >= 0"):
        visible_pairs(-1, 3)

"""What the builder promises: dead memory is poisoned, live memory is not, and the problem stays the same."""

from __future__ import annotations

import math

import pytest
import torch

from chunkattn.testing import BATCHES, AttentionCase, build, dynamic_scale, largest_value, quantize

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("layout", ["nhd", "hnd", "fused", "layers", "lanes"])
def test_everything_outside_live_keys_is_nan(layout):
    case = AttentionCase("live", (1, 4), (33, 20), head_dim=16, dtype=torch.float32, layout=layout)
    inputs = build(case)
    for cache in (inputs.k_cache, inputs.v_cache):
        assert cache.isnan().sum() == cache.numel() - 53 * case.num_kv_heads * case.head_dim
    assert inputs.k_cache.shape == (5 + case.spare_pages, 16, 2, 16)
    storage = torch.empty(0).set_(inputs.k_cache.untyped_storage())
    assert (~storage.isnan()).sum() == 53 * 32 * (2 if layout in ("fused", "layers") else 1)


def test_pages_that_no_row_sees_are_dead():
    case = AttentionCase("window", (4, 4), (100, 100), dtype=torch.float32, window=(31, -1))
    inputs = build(case)
    for request in range(2):
        for column in range(7):
            page = int(inputs.block_table[request, column])
            if column < 4:  # positions 0..63; the first row sees 65..96
                assert page == -1 if request else inputs.k_cache[page].isnan().all()
            else:
                live = 16 if column < 6 else 4
                assert inputs.k_cache[page].isnan().sum() == (16 - live) * 2 * 64


def test_requests_without_tokens_keep_no_live_page():
    inputs = build(AttentionCase("idle", (0, 0), (40, 40), dtype=torch.float32))
    assert inputs.k_cache.isnan().all()


def test_spare_columns_hold_garbage_and_rows_are_strided():
    inputs = build(AttentionCase("table", (1, 1), (5, 40), spare_columns=6))
    assert inputs.block_table.shape == (2, 9)
    assert inputs.block_table.stride(0) > 9
    outside = (inputs.block_table[0, 1:] < 0) | (inputs.block_table[0, 1:] >= inputs.k_cache.shape[0])
    assert outside.sum() >= 4


@pytest.mark.parametrize("kv_dtype", [None, *FLOAT8, torch.int8])
@pytest.mark.parametrize("scale_mode", ["none", "tensor", "head", "token_head"])
def test_contents_do_not_depend_on_pages_or_poison(kv_dtype, scale_mode):
    case = AttentionCase("same", (3, 1), (20, 40), kv_dtype=kv_dtype, scale_mode=scale_mode, head_dim=16)
    out, lse = build(case).expected()
    assert torch.isfinite(out).all()
    for poison in ("inf", "zero", "garbage"):
        other = build(case, poison=poison, page_seed=4).expected()
        assert torch.equal(other[0], out)
        assert torch.equal(other[1], lse)


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize("scale_mode", ["tensor", "head", "token_head"])
def test_quantised_pools_are_close_to_the_plain_one(kv_dtype, scale_mode):
    case = AttentionCase("close", (2,), (200,), dtype=torch.float32, head_dim=32)
    plain, _ = build(case).expected()
    quantised, _ = build(case.but(kv_dtype=kv_dtype, scale_mode=scale_mode)).expected()
    error = (plain - quantised).norm() / plain.norm()
    assert 1e-4 < error < (0.12 if kv_dtype == torch.float8_e5m2 else 0.06)


@pytest.mark.parametrize("q_layout", ["fused_qkv", "head_major", "offset"])
def test_q_layouts_hold_the_same_rows(q_layout):
    case = AttentionCase("q", *BATCHES["mixed"], padding=2)
    plain, other = build(case).q, build(case.but(q_layout=q_layout)).q
    assert torch.equal(plain[:-2], other[:-2])
    assert other.stride(-1) == 1
    assert not other.is_contiguous() or other.storage_offset() == 1


@pytest.mark.parametrize("dtype", FLOAT8)
def test_rounding_to_float8_equals_the_cast_in_range(dtype):
    every_bf16 = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    inside = every_bf16[every_bf16.abs() <= largest_value(dtype)]
    assert torch.equal(quantize(inside, 1.0, dtype).view(torch.uint8), inside.to(dtype).view(torch.uint8))


def test_rounding_clamps_and_keeps_nan():
    x = torch.tensor([1000.0, 449.0, -1e4, math.nan, math.inf, -math.inf, 1.0625, 1.1875])
    stored = quantize(x, 1.0, torch.float8_e4m3fn).float()
    assert stored[:3].tolist() == [448.0, 448.0, -448.0]
    assert stored[3].isnan()
    assert stored[4:].tolist() == [448.0, -448.0, 1.0, 1.25]  # ties to even
    assert quantize(x, 100.0, torch.int8).tolist() == [10, 4, -100, 0, 127, -127, 0, 0]
    assert quantize(torch.tensor([0.5, 1.5, 2.5, -0.5]), 1.0, torch.int8).tolist() == [0, 2, 2, 0]


def test_dynamic_scale_of_zeros_is_one():
    assert dynamic_scale(torch.tensor([[0.0, 0.0], [-448.0, 3.0]]), torch.float8_e4m3fn).tolist() == [1.0, 1.0]


def test_bad_cases_are_refused():
    with pytest.raises(ValueError, match="kv_lens: expected 2"):
        AttentionCase("bad", (1, 1), (1,))
    with pytest.raises(ValueError, match="num_q_heads: expected a multiple of 2, got 3"):
        AttentionCase("bad", (1,), (1,), num_q_heads=3)

"""append_kv against its oracle: slots, layouts, rotation, quantisation; nothing else is written (d14, d24, d30)."""

from __future__ import annotations

import math

import pytest
import torch

import chunkattn
from chunkattn.testing import (
    AttentionCase,
    AttentionInputs,
    append_kv_oracle,
    assert_bitwise_equal,
    assert_rows_close,
    build,
    dynamic_scale,
    largest_value,
)

QUANTIZED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]


def new_rows(inputs: AttentionInputs, seed: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """k [T, Hkv, D] and v [T, Hkv, Dv] to append, as slices of one fused row."""
    case = inputs.case
    generator = torch.Generator().manual_seed(seed)
    width = case.head_dim + case.value_dim
    rows = torch.randn(inputs.q.shape[0], case.num_kv_heads, width, generator=generator).to(case.dtype)
    return rows[..., : case.head_dim], rows[..., case.head_dim :]


def rope_tables(positions: int, rotary_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(0, rotary_dim, 2) / rotary_dim)
    return angle.cos(), angle.sin()


def append(inputs, k, v, backend, **options):
    """Runs the operator; returns what the oracle says it must leave behind."""
    batch = inputs.k_cache, inputs.v_cache, *inputs.batch()[3:]
    scales = {"k_scale": inputs.k_scale, "v_scale": inputs.v_scale}
    expected = append_kv_oracle(k, v, *batch, **scales, **options)
    result = chunkattn.append_kv(k, v, *batch, **scales, **options, backend=backend)
    assert result is None
    return expected


def assert_stored(inputs, expected):
    assert_bitwise_equal(inputs.k_cache, expected.k_cache, name="k_cache")
    assert_bitwise_equal(inputs.v_cache, expected.v_cache, name="v_cache")
    for name in ("k_scale", "v_scale"):
        if getattr(expected, name) is not None:
            assert_bitwise_equal(getattr(inputs, name), getattr(expected, name), name=name)


BATCH = {"q_lens": (1, 0, 17, 5, 1), "kv_lens": (1, 30, 40, 5, 129)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("layout", ["nhd", "hnd", "fused", "layers", "lanes"])
@pytest.mark.parametrize("page_size", [1, 16, 24, 128])
def test_rows_land_in_their_slots_and_nowhere_else(dtype, layout, page_size, backend):
    case = AttentionCase(
        "append", **BATCH, dtype=dtype, layout=layout, page_size=page_size, head_dim=40, head_dim_v=24, padding=3
    )
    inputs = build(case)
    storage = torch.empty(0, dtype=dtype).set_(inputs.k_cache.untyped_storage())
    before = storage.clone()
    expected = append(inputs, *new_rows(inputs), backend)
    assert_stored(inputs, expected)
    # Spare lanes, other layers and other pages of the same storage keep their bits.
    changed = (storage.view(torch.uint8) != before.view(torch.uint8)).view(-1, dtype.itemsize).any(1).sum()
    per_token = case.num_kv_heads * (case.head_dim + (case.value_dim if layout in ("fused", "layers") else 0))
    assert changed <= sum(case.q_lens) * per_token


@pytest.mark.parametrize("head_dim", [46, 8, 72, 256])
def test_d14_rows_that_are_not_aligned_to_vector_width(head_dim, backend):
    pool = torch.full((3, 16, 2, head_dim + 10), math.nan, dtype=torch.bfloat16)
    k_cache, v_cache = pool[..., :head_dim], pool.clone()[..., :head_dim]
    k, v = torch.randn(2, 20, 2, head_dim).to(torch.bfloat16)
    batch = torch.tensor([[2, 0]], dtype=torch.int32), torch.tensor([0, 20]).int(), torch.tensor([21]).int()
    chunkattn.append_kv(k, v, k_cache, v_cache, *batch, backend=backend)
    for cache, rows in ((k_cache, k), (v_cache, v)):
        assert_bitwise_equal(torch.cat([cache[2, 1:], cache[0, :5]]), rows)
        assert cache.isnan().sum() == (3 * 16 - 20) * 2 * head_dim
    assert pool[..., head_dim:].isnan().all()


@pytest.mark.parametrize("kv_dtype", QUANTIZED)
@pytest.mark.parametrize("scale_mode", ["none", "tensor", "head", "token_head"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_quantised_bytes_equal_clamp_and_round_to_even(kv_dtype, scale_mode, dtype, backend):
    case = AttentionCase("quantised", **BATCH, dtype=dtype, kv_dtype=kv_dtype, scale_mode=scale_mode, layout="hnd")
    inputs = build(case, poison="zero")
    k, v = (3.0 * rows for rows in new_rows(inputs))  # three times the range that the scales were made for
    k[0, 0, :4] = torch.tensor([1000.0, 449.0, -1e4, 0.5])
    v[1, 1] = 0.0
    expected = append(inputs, k, v, backend)
    assert_stored(inputs, expected)


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_bfloat16_is_rounded_like_the_reference(kv_dtype, backend):
    """65,536 values: all roundings, subnormals, infinities, NaN."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(128, 2, 256)
    pools = [torch.zeros(8, 16, 2, 256, dtype=torch.uint8).view(kv_dtype) for _ in range(2)]
    batch = torch.arange(8, dtype=torch.int32)[None], torch.tensor([0, 128]).int(), torch.tensor([128]).int()
    for scale in (1.0, 0.37):
        scales = {"k_scale": torch.tensor(scale), "v_scale": torch.tensor([scale, 3.0 * scale])}
        expected = append_kv_oracle(values, values, *pools, *batch, **scales)
        chunkattn.append_kv(values, values, *pools, *batch, **scales, backend=backend)
        for pool, right in zip(pools, (expected.k_cache, expected.v_cache), strict=True):
            # A NaN may keep its sign or lose it.
            nan = right.float().isnan()
            assert torch.equal(pool.float().isnan(), nan)
            assert torch.equal(pool.view(torch.uint8)[~nan], right.view(torch.uint8)[~nan])


def test_d30_out_of_range_values_are_clamped_and_nan_is_kept(backend):
    x = torch.tensor([1000.0, 449.0, -1e4, math.nan, 1.0625, 1.1875, 448.0, -0.0]).view(1, 1, 8)
    batch = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([0, 1]).int(), torch.tensor([1]).int()
    one = {"k_scale": torch.tensor(1.0), "v_scale": torch.tensor(1.0)}
    for kv_dtype, clamped in ((torch.float8_e4m3fn, 448.0), (torch.int8, 127.0)):
        k_cache, v_cache = (torch.zeros(1, 4, 1, 8, dtype=torch.uint8).view(kv_dtype) for _ in range(2))
        chunkattn.append_kv(x, x, k_cache, v_cache, *batch, **one, backend=backend)
        for cache in (k_cache, v_cache):
            stored = cache[0, 0, 0].float().tolist()
            assert stored[:3] == [clamped, min(449.0, clamped), -clamped]
            assert stored[3] == 0.0 if kv_dtype == torch.int8 else math.isnan(stored[3])
            assert stored[4:7] == ([1.0, 1.0, 127.0] if kv_dtype == torch.int8 else [1.0, 1.25, 448.0])


@pytest.mark.parametrize("kv_dtype", QUANTIZED)
def test_dynamic_scales_use_the_whole_range(kv_dtype, backend):
    case = AttentionCase("dynamic", (9,), (9,), kv_dtype=kv_dtype, scale_mode="token_head", dtype=torch.float32)
    inputs = build(case)
    k, v = new_rows(inputs)
    k[3] *= 1e4
    v[4, 0] = 0.0
    append(inputs, k, v, backend)
    page = int(inputs.block_table[0, 0])
    assert torch.equal(inputs.k_scale[page, :9], dynamic_scale(k, kv_dtype))
    assert inputs.v_scale[page, 4, 0] == 1.0
    assert (inputs.k_cache[page, :9].float().abs().amax(-1) == largest_value(kv_dtype)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [2, 32, 64])
def test_rotation_of_keys_and_queries(dtype, interleaved, rotary_dim, backend):
    case = AttentionCase("rope", **BATCH, dtype=dtype, num_q_heads=6, padding=2, q_layout="fused_qkv")
    inputs = build(case, poison="zero")
    k, v = new_rows(inputs)
    q, before = inputs.q, inputs.q.clone()
    rope = chunkattn.Rope(*rope_tables(140, rotary_dim), interleaved=interleaved)
    expected = append(inputs, k, v, backend, rope=rope, q=q)
    assert_rows_close(inputs.k_cache, expected.k_cache.double(), name="k_cache")
    assert_bitwise_equal(inputs.v_cache, expected.v_cache, name="v_cache")
    assert_rows_close(q[:24], expected.q[:24].double(), name="q")
    assert_bitwise_equal(q[24:], before[24:], name="padding rows of q")
    assert_bitwise_equal(q[..., rotary_dim:], before[..., rotary_dim:], name="lanes that do not rotate")
    assert not torch.equal(q[:24, :, :rotary_dim], before[:24, :, :rotary_dim])


def test_rotation_numbers(backend):
    """A quarter turn of pair 1: (i, i + half) or (2i, 2i + 1), counter-clockwise, other lanes untouched."""
    x = torch.arange(1.0, 9.0).view(1, 1, 8)
    cos, sin = torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    batch = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([0, 1]).int(), torch.tensor([2]).int()
    for interleaved, rotated in ((False, [1, -4, 3, 2, 5, 6, 7, 8]), (True, [1, 2, -4, 3, 5, 6, 7, 8])):
        k_cache, v_cache, q = torch.zeros(1, 4, 1, 8), torch.zeros(1, 4, 1, 8), x.repeat(1, 3, 1)
        rope = chunkattn.Rope(cos, sin, interleaved=interleaved)
        chunkattn.append_kv(x, x, k_cache, v_cache, *batch, rope=rope, q=q, backend=backend)
        assert k_cache[0, 1, 0].tolist() == rotated
        assert q[0].tolist() == [rotated] * 3
        assert v_cache[0, 1, 0].tolist() == x.flatten().tolist()
        assert k_cache.count_nonzero() == 8


def test_explicit_rotary_positions(backend):
    case = AttentionCase("positions", (4, 2), (20, 2), dtype=torch.float32)
    inputs = build(case, poison="zero")
    positions = torch.tensor([0, 7, 7, 30, 2, 1])
    rope = chunkattn.Rope(*rope_tables(31, 64), positions=positions)
    expected = append(inputs, *new_rows(inputs), backend, rope=rope, q=inputs.q)
    assert_rows_close(inputs.k_cache, expected.k_cache.double(), name="k_cache")
    assert_rows_close(inputs.q, expected.q.double(), name="q")


@pytest.mark.parametrize("kv_dtype", QUANTIZED)
@pytest.mark.parametrize("scale_mode", ["head", "token_head"])
def test_rotated_keys_are_quantised_after_the_rotation(kv_dtype, scale_mode, backend):
    case = AttentionCase("both", **BATCH, kv_dtype=kv_dtype, scale_mode=scale_mode)
    inputs = build(case, poison="zero")
    rope = chunkattn.Rope(*rope_tables(140, 48), interleaved=True)
    expected = append(inputs, *new_rows(inputs), backend, rope=rope)
    assert_bitwise_equal(inputs.v_cache, expected.v_cache, name="v_cache")
    # Rotation in float32 and in float64 may fall on two sides of a rounding: one step of the format.
    got, right = inputs.k_cache.float(), expected.k_cache.float()
    step = {torch.float8_e4m3fn: 2.0**-3, torch.float8_e5m2: 2.0**-2, torch.int8: 0.0}[kv_dtype]
    smallest = {torch.float8_e4m3fn: 2.0**-9, torch.float8_e5m2: 2.0**-16, torch.int8: 1.0}[kv_dtype]
    assert ((got - right).abs() <= (right.abs() * step).clamp(min=smallest)).all()
    assert (got != right).float().mean() < 0.02
    if scale_mode == "token_head":
        assert torch.allclose(inputs.k_scale, expected.k_scale, rtol=0.01 if case.dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_d24_slot_mapping_decides_and_minus_one_skips(index_dtype, backend):
    case = AttentionCase("slots", (16,), (16,), spare_pages=6)
    inputs = build(case, poison="zero")
    k, v = new_rows(inputs)
    slots = torch.tensor([7, 40, 41, 100, 3, 99, 0, 63, 64], dtype=index_dtype)
    expected = append(inputs, k, v, backend, slot_mapping=slots)
    assert_stored(inputs, expected)
    rows = inputs.k_cache.view(-1, 2, 64)[slots.long()]
    assert_bitwise_equal(rows, k[:9])

    inputs = build(case, poison="zero")
    padded = torch.cat([slots, torch.full((7,), -1, dtype=index_dtype)])
    append(inputs, k, v, backend, slot_mapping=padded)
    assert_stored(inputs, expected)
    clean = build(case, poison="zero").k_cache
    assert (inputs.k_cache.view(-1, 128) != clean.view(-1, 128)).any(1).sum() == 9


def test_d24_positions_of_skipped_tokens_are_not_looked_at(backend):
    case = AttentionCase("skipped", (16,), (16,), spare_pages=6, dtype=torch.float32)
    inputs = build(case, poison="zero")
    slots = torch.tensor([7, 40, 41, 100, 3, 99, 0, 63, 64] + [-1] * 7)
    positions = torch.tensor([*range(9), 2**40, -5, -(2**62), 31, 99, 2**31, -1])
    rope = chunkattn.Rope(*rope_tables(31, 64), positions=positions)
    before = inputs.q.clone()
    expected = append(inputs, *new_rows(inputs), backend, rope=rope, q=inputs.q, slot_mapping=slots)
    assert_rows_close(inputs.k_cache, expected.k_cache.double(), name="k_cache")
    assert_rows_close(inputs.q[:9], expected.q[:9].double(), name="q")
    assert_bitwise_equal(inputs.q[9:], before[9:], name="skipped rows of q")


@pytest.mark.parametrize("explicit", [False, True])
def test_d24_mapped_tokens_of_no_request_are_stored_as_they_are(explicit, backend):
    case = AttentionCase("padding", (5, 3), (9, 3), spare_pages=6, dtype=torch.float32, padding=4)
    inputs = build(case, poison="zero")
    k, v = new_rows(inputs)
    slots = torch.tensor([7, 40, 41, 100, 3, 99, 0, 63, 64, -1, 65, 66])
    positions = torch.tensor([*range(8), 2**40, -1, 5, -7]) if explicit else None
    rope = chunkattn.Rope(*rope_tables(31, 64), positions=positions)
    before = inputs.q.clone()
    expected = append(inputs, k, v, backend, rope=rope, q=inputs.q, slot_mapping=slots)
    assert_rows_close(inputs.k_cache, expected.k_cache.double(), name="k_cache")
    assert_bitwise_equal(inputs.k_cache.view(-1, 2, 64)[slots[[8, 10, 11]]], k[[8, 10, 11]], name="k of padding")
    assert_rows_close(inputs.q[:8], expected.q[:8].double(), name="q")
    assert_bitwise_equal(inputs.q[8:], before[8:], name="q of padding")


@pytest.mark.parametrize("slot", [176, -2, 2**31 - 1, -(2**31)])
def test_d24_a_slot_outside_the_pool_is_refused(slot, backend):
    case = AttentionCase("slots", (3,), (3,), spare_pages=10)
    inputs = build(case, poison="zero")
    assert inputs.k_cache.shape[0] == 11
    before = inputs.k_cache.clone(), inputs.v_cache.clone()
    batch = inputs.k_cache, inputs.v_cache, *inputs.batch()[3:]
    for dtype in (torch.int32, torch.int64):
        slots = torch.tensor([5, 6, slot], dtype=dtype)
        with pytest.raises(ValueError, match=f"slot_mapping: expected .*got {slot}"):
            chunkattn.append_kv(*new_rows(inputs), *batch, slot_mapping=slots, backend=backend)
    assert_bitwise_equal(inputs.k_cache, before[0])
    assert_bitwise_equal(inputs.v_cache, before[1])


def test_d24_tokens_cross_page_borders_in_table_order(backend):
    k_cache, v_cache = torch.zeros(9, 16, 1, 8), torch.zeros(9, 16, 1, 8)
    k = torch.arange(1.0, 19.0)[:, None, None].repeat(1, 1, 8)
    batch = torch.tensor([[7, 2, 5]]).int(), torch.tensor([0, 18]).int(), torch.tensor([15 + 18]).int()
    chunkattn.append_kv(k, -k, k_cache, v_cache, *batch, backend=backend)
    assert k_cache[7, 15, 0, 0] == 1.0
    assert k_cache[2, :, 0, 0].tolist() == [float(i) for i in range(2, 18)]
    assert k_cache[5, 0, 0, 0] == 18.0
    assert k_cache.count_nonzero() == 18 * 8
    assert torch.equal(v_cache, -k_cache)


def test_d24_more_tokens_than_the_table_holds_is_refused(backend):
    k_cache, v_cache = torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 8)
    k = torch.ones(9, 1, 8)
    batch = torch.tensor([[1, 0]]).int(), torch.tensor([0, 9]).int(), torch.tensor([9]).int()
    with pytest.raises(ValueError, match="seq_lens: expected at most 8"):
        chunkattn.append_kv(k, k, k_cache, v_cache, *batch, backend=backend)
    assert k_cache.count_nonzero() == 0
    batch = torch.tensor([[1, 5]]).int(), torch.tensor([0, 8]).int(), torch.tensor([8]).int()
    with pytest.raises(ValueError, match=r"block_table: expected .*got 5"):
        chunkattn.append_kv(k[:8], k[:8], k_cache, v_cache, *batch, backend=backend)
    assert k_cache.count_nonzero() == 0


def test_nothing_to_append(backend):
    case = AttentionCase("empty", (0, 0), (12, 0))
    inputs = build(case, poison="garbage")
    before = inputs.k_cache.clone()
    append(inputs, *new_rows(inputs), backend)
    assert_bitwise_equal(inputs.k_cache, before)


def test_earlier_pages_of_a_sliding_window_may_be_gone(backend):
    case = AttentionCase("window", (2,), (70,))
    inputs = build(case, poison="zero")
    inputs.block_table[0, :4] = -1
    k, v = new_rows(inputs)
    page = int(inputs.block_table[0, 4])
    chunkattn.append_kv(k, v, inputs.k_cache, inputs.v_cache, *inputs.batch()[3:], backend=backend)
    assert_bitwise_equal(inputs.k_cache[page, 4:6], k)

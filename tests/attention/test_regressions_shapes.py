"""Head ratios, head dims, empty rows, poison, extreme scores, tables and strides (d13-d15, d18, d19, d22, d23, d28)."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import chunkattn
from chunkattn.testing import (
    AttentionCase,
    assert_bitwise_equal,
    assert_rows_close,
    assert_state_close,
    build,
    lanes_expected,
    lanes_probe,
    needle_expected,
    needle_probe,
    random_contents,
    uniform_probe,
)

RATIOS = [(2 * r, 2) for r in (1, 3, 5, 6, 7, 9, 12, 16, 17)] + [(24, 4), (28, 4), (40, 8), (96, 6), (48, 1)]


def same_bits(actual, expected):
    assert_bitwise_equal(actual[0], expected[0])
    assert_bitwise_equal(actual[1], expected[1], name="lse")


@pytest.mark.parametrize("heads", RATIOS, ids=str)
def test_d13_any_head_ratio(heads, attend):
    for q_len in (1, 5):
        case = AttentionCase("d13", (q_len,), (33,), num_q_heads=heads[0], num_kv_heads=heads[1], dtype=torch.float32)
        out, _ = attend(build(case, lanes_probe(case)))
        assert_rows_close(out, lanes_expected(case))
        inputs = build(case)
        assert_state_close(attend(inputs), inputs.expected())


@pytest.mark.parametrize("head_dim", [80, 96, 112, 256])
def test_d14_the_last_lane_counts_and_the_lanes_behind_it_do_not(head_dim, attend):
    case = AttentionCase("d14a", (3, 1), (40, 33), head_dim=head_dim, layout="lanes", dtype=torch.float32)
    contents = random_contents(case)
    contents.q.zero_()
    contents.q[..., -1] = 40.0 * head_dim**0.5
    targets = [[0, 17, 37], [32]]
    for keys, positions in zip(contents.keys, targets, strict=True):
        keys[...] = keys[:1]
        keys[..., -1] = -1.0
        keys[positions[0], :, -1] = 1.0
    out, _ = attend(build(case, contents))
    first = [[positions[0]] * len(positions) for positions in targets]
    assert_rows_close(out, needle_expected(case, contents, first))


@pytest.mark.parametrize("head_dim", [16, 80, 96, 112])
def test_d14_default_scale_is_that_of_the_true_head_dim(head_dim, attend, attend_with):
    case = AttentionCase("scale", (4,), (50,), head_dim=head_dim, dtype=torch.float32)
    inputs = build(case)
    same_bits(attend_with(inputs, softmax_scale=head_dim**-0.5), attend(inputs))
    assert_state_close(attend(inputs), inputs.expected())


@pytest.mark.parametrize("page_size", [16, 64])
def test_d14_values_narrower_than_keys(page_size, attend):
    case = AttentionCase("d14b", (5, 1), (100, 100), head_dim=192, head_dim_v=128, page_size=page_size)
    inputs = build(case)
    assert_state_close(attend(inputs), inputs.expected())
    wider = build(case.but(head_dim=64, head_dim_v=256))
    assert_state_close(attend(wider), wider.expected())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn, torch.int8])
def test_d14_data_that_starts_one_element_into_its_storage(dtype, kv_dtype, attend):
    mode = "none" if kv_dtype is None else "tensor"
    case = AttentionCase("d14c", (5, 1), (40, 17), dtype=dtype, kv_dtype=kv_dtype, q_layout="offset", scale_mode=mode)
    inputs = build(case)
    moved = {}
    for name in ("k_cache", "v_cache"):
        pool = getattr(inputs, name)
        raw = torch.empty(pool.numel() + 1, dtype=pool.dtype)
        moved[name] = raw[1:].view(pool.shape)
        moved[name].view(torch.uint8).copy_(pool.view(torch.uint8))
    shifted = dataclasses.replace(inputs, **moved)
    out = torch.full((inputs.q.numel() + 1,), math.nan, dtype=dtype)[1:].view(inputs.q.shape)
    lse = torch.empty(inputs.q.shape[:2])
    attend(shifted, out=out, lse=lse)
    assert_state_close((out, lse), inputs.expected())


def test_d15_requests_without_tokens_or_keys(attend):
    case = AttentionCase("d15", (0, 1, 0, 1), (0, 3, 0, 5), num_q_heads=9, num_kv_heads=3, head_dim=64)
    inputs = build(case)
    out, lse = inputs.empty_state(math.nan)
    attend(inputs, out=out, lse=lse)
    assert_state_close((out, lse), inputs.expected())

    inputs = build(case.but(q_lens=(1, 1, 1), kv_lens=(5, 0, 3)))
    out, lse = inputs.empty_state(math.nan)
    attend(inputs, out=out, lse=lse)
    assert_state_close((out, lse), inputs.expected())
    assert torch.count_nonzero(out[1]) == 0
    assert torch.isneginf(lse[1]).all()

    for q_lens, kv_lens in (((0, 0), (12, 0)), ((), ())):
        inputs = build(case.but(q_lens=q_lens, kv_lens=kv_lens))
        out, lse = attend(inputs)
        assert out.shape == (0, 9, 64)
        assert lse.shape == (0, 9)


@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize("q_len", [1, 7])
def test_d18_dead_slots_and_pages_may_hold_anything(kv_dtype, q_len, attend):
    mode = "none" if kv_dtype is None else "token_head"
    case = AttentionCase("d18", (q_len,), (33,), kv_dtype=kv_dtype, scale_mode=mode, spare_pages=20)
    clean = build(case, poison="zero")
    expected = attend(clean)
    for poison in ("nan", "inf", "garbage"):
        dirty = build(case, poison=poison)
        for names in (("k_cache", "k_scale"), ("v_cache", "v_scale"), ("k_cache", "v_cache", "k_scale", "v_scale")):
            mixed = dataclasses.replace(clean, **{name: getattr(dirty, name) for name in names})
            same_bits(attend(mixed), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("q", "k", "lse"), [(240.0, -250.0, -7500 + math.log(4)), (280.0, 250.0, 8750 + math.log(4))])
def test_d19_scores_beyond_any_sentinel(dtype, q, k, lse, attend):
    case = AttentionCase("d19", (1,), (4,), num_q_heads=1, num_kv_heads=1, dtype=dtype, softmax_scale=0.125)
    contents = uniform_probe(case)
    contents.q[..., 0] = q
    contents.keys[0].zero_()
    contents.keys[0][..., 0] = k
    out, got = attend(build(case, contents))
    assert_rows_close(out, torch.full(out.shape, 2.5, dtype=torch.float64))
    assert got.item() == pytest.approx(lse, rel=1e-6)


def test_d22_spare_columns_may_hold_anything(attend):
    case = AttentionCase("d22", (1,), (33,), spare_columns=61)
    inputs = build(case)
    expected = attend(inputs)
    assert_state_close(expected, inputs.expected())
    for garbage in (-1, 2**31 - 1, inputs.k_cache.shape[0], -(2**31)):
        inputs.block_table[:, 3:] = garbage
        same_bits(attend(inputs), expected)


@pytest.mark.parametrize("page", [-1, "num_pages", 2**31 - 1, -(2**31)])
def test_d22_a_page_id_outside_the_pool_is_refused_and_named(page, attend):
    case = AttentionCase("bad page", (1, 3), (20, 50))
    inputs = build(case)
    page = inputs.k_cache.shape[0] if page == "num_pages" else page
    inputs.block_table[1, 2] = page
    out, lse = inputs.empty_state(7.0)
    with pytest.raises(ValueError, match=rf"block_table: expected .*got {page}.*request 1.*column 2"):
        attend(inputs, out=out, lse=lse)
    assert (out == 7.0).all()
    assert (lse == 7.0).all()


def test_d22_several_tokens_a_request_equal_single_token_decodes(attend):
    case = AttentionCase("d22 speculative", (3,) * 8, (17, 3, 64, 33, 80, 5, 130, 16), dtype=torch.float32)
    inputs = build(case)
    together = attend(inputs)
    singles = attend(inputs.recut([(request, row, row + 1) for request in range(8) for row in range(3)]))
    assert_state_close(singles, (together[0].double(), together[1].double()))
    assert_state_close(together, inputs.expected())


def test_d23_block_table_and_pool_views(attend):
    case = AttentionCase("d23", (5, 1), (40, 33), spare_columns=0)
    expected = build(case).expected()
    wide = torch.full((2, 64), -7, dtype=torch.int32)
    inputs = build(case)
    wide[:, 2:5] = inputs.block_table
    transposed = inputs.block_table.T.contiguous().T
    assert transposed.stride() == (1, 2)
    for table in (wide[:, 2:5], transposed):
        assert_state_close(attend(dataclasses.replace(inputs, block_table=table)), expected)
    for layout in ("hnd", "fused", "layers", "lanes"):
        assert_state_close(attend(build(case.but(layout=layout))), expected)
    both = torch.full((*inputs.k_cache.shape[:3], 128), math.nan, dtype=case.dtype)
    k_cache, v_cache = both.split(64, -1)
    k_cache.copy_(inputs.k_cache)
    v_cache.copy_(inputs.v_cache)
    assert_state_close(attend(dataclasses.replace(inputs, k_cache=k_cache, v_cache=v_cache)), expected)


@pytest.mark.parametrize("num_splits", [None, 8])
def test_d23_outputs_and_queries_with_any_strides(num_splits, attend):
    case = AttentionCase("d23", (5, 1), (40, 700), num_splits=num_splits)
    expected = build(case).expected()
    for q_layout in ("fused_qkv", "head_major", "offset"):
        inputs = build(case.but(q_layout=q_layout))
        out = torch.full((64, 4, 6), math.nan, dtype=case.dtype).permute(2, 1, 0)
        with pytest.raises(ValueError, match="out: expected"):
            attend(inputs, out=out)
        wide = torch.full((4, 9, 100), math.nan, dtype=case.dtype)
        lse = torch.full((4, 6, 3), math.nan)[..., 1].T
        attend(inputs, out=wide.transpose(0, 1)[2:8, :, 3:67], lse=lse)
        assert_state_close((wide.transpose(0, 1)[2:8, :, 3:67], lse), expected)
        wide.transpose(0, 1)[2:8, :, 3:67] = math.nan
        assert wide.isnan().all()


def test_d23_a_query_whose_last_dim_is_strided_is_refused(attend):
    inputs = build(AttentionCase("strided", (5,), (40,)))
    q = inputs.q.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(ValueError, match="q: expected a contiguous last dim"):
        attend(dataclasses.replace(inputs, q=q))


def test_d28_a_padded_batch_is_not_taken_for_a_uniform_one(attend):
    case = AttentionCase("d28", (2, 2, 0, 0), (20, 33, 0, 0))
    inputs = build(case)
    assert inputs.cu_seqlens_q.tolist() == [0, 2, 4, 4, 4]
    padded = attend(inputs)
    assert_state_close(padded, inputs.expected())
    same = attend(build(case.but(q_lens=(2, 2), kv_lens=(20, 33))))
    assert_state_close(same, (padded[0].double(), padded[1].double()))


def test_d28_padding_tokens_are_written_as_empty(attend):
    inputs = build(AttentionCase("padded", (2, 1), (20, 33), padding=13, sinks=True))
    out, lse = inputs.empty_state(math.nan)
    attend(inputs, out=out, lse=lse)
    assert torch.count_nonzero(out[3:]) == 0
    assert torch.isneginf(lse[3:]).all()
    assert_state_close((out, lse), inputs.expected())


def test_csr_tables_are_the_same_batch(attend, backend):
    case = AttentionCase("csr", (3, 0, 1, 2), (40, 0, 16, 2), num_q_heads=2)
    inputs = build(case)
    pages = [inputs.block_table[r, : case.pages_of(r)] for r in range(4)]
    batch = chunkattn.Batch.from_csr(
        inputs.cu_seqlens_q,
        torch.tensor([0, 3, 3, 4, 5], dtype=torch.int32),
        torch.cat(pages),
        torch.tensor([8, 77, 16, 2], dtype=torch.int32),
        page_size=16,
    )
    assert batch.seq_lens.tolist() == [40, 0, 16, 2]
    state = chunkattn.attention(
        inputs.q, inputs.k_cache, inputs.v_cache, batch.block_table, batch.cu_seqlens_q, batch.seq_lens,
        return_lse=True, backend=backend,
    )  # fmt: skip
    assert_state_close(state, inputs.expected())


def test_needles_with_many_heads(attend):
    case = AttentionCase("needles", (2, 1), (300, 77), num_q_heads=24, num_kv_heads=6, head_dim=128)
    targets = [[298, 3], [0]]
    contents = needle_probe(case, targets)
    assert_rows_close(attend(build(case, contents))[0], needle_expected(case, contents, targets))

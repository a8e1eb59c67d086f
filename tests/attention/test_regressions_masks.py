"""Masks, windows, soft-cap, ALiBi and sinks: cases of public bug reports, with closed-form answers (d01-d12)."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

import chunkattn
from chunkattn.testing import (
    AttentionCase,
    assert_bitwise_equal,
    assert_lse_close,
    assert_rows_close,
    assert_state_close,
    attention_oracle,
    build,
    needle_expected,
    needle_probe,
    random_contents,
    uniform_probe,
)

LN2 = math.log(2)


def assert_probe(state, out=None, lse=None, rows=None):
    """Checks rows of the uniform probe: one number a token, the same in every head and lane."""
    got_out, got_lse = state if rows is None else (state[0][rows], state[1][rows])
    if out is not None:
        assert_rows_close(got_out, torch.tensor(out).double()[:, None, None].expand(got_out.shape))
    if lse is not None:
        assert_lse_close(got_lse, torch.tensor(lse).double()[:, None].expand(got_lse.shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_d01_causal_is_aligned_at_the_bottom_right(dtype, attend):
    case = AttentionCase("d01a", (3,), (128,), num_q_heads=8, num_kv_heads=2, head_dim=128, dtype=dtype)
    assert_probe(attend(build(case, uniform_probe(case))), [63.5, 64.0, 64.5], [4.836282, 4.844187, 4.852030])
    case = case.but(name="d01b", q_lens=(2,), kv_lens=(5,), page_size=4)
    assert_probe(attend(build(case, uniform_probe(case))), [2.5, 3.0], [1.3862944, 1.6094379])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_d02_rows_without_a_key_are_written_as_zero(dtype, attend):
    case = AttentionCase("d02", (5,), (2,), dtype=dtype)
    inputs = build(case, uniform_probe(case))
    out, lse = inputs.empty_state(math.nan)
    attend(inputs, out=out, lse=lse)
    assert_probe((out, lse), [0, 0, 0, 1, 1.5], [-math.inf, -math.inf, -math.inf, 0, LN2])


def test_d03_one_ragged_call_equals_separate_calls(attend):
    q_lens, kv_lens = (1, 7, 33, 1, 16), (17, 7, 65, 1, 48)
    case = AttentionCase("d03", q_lens, kv_lens, dtype=torch.float32)
    inputs = build(case, uniform_probe(case))
    state = attend(inputs)
    first, last = [0, 1, 8, 41, 42], [0, 7, 40, 41, 57]
    assert_probe(state, lse=[math.log(n) for n in (17, 1, 33, 1, 33)], rows=first)
    assert_probe(state, out=[9, 4, 33, 1, 24.5], lse=[math.log(n) for n in (17, 7, 65, 1, 48)], rows=last)
    random = build(case)
    together = attend(random)
    start = 0
    for request, q_len in enumerate(q_lens):
        alone = attend(random.recut([(request, 0, q_len)]))
        rows = slice(start, start + q_len)
        assert_state_close(alone, (together[0][rows].double(), together[1][rows].double()))
        start += q_len


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_d04_chunks_with_appends_between_equal_one_shot(dtype, backend):
    case = AttentionCase("d04", (101,), (101,), head_dim=64, dtype=dtype)
    contents = random_contents(case)
    whole = build(case, contents)
    expected = whole.expected()
    k, v = contents.keys[0].to(dtype), contents.values[0].to(dtype)
    for cuts in ([0, 100, 101], [0, 37, 63, 100, 101], [0, 64, 99, 100, 101]):
        k_cache = torch.full_like(whole.k_cache, math.nan)
        v_cache = torch.full_like(whole.v_cache, math.nan)
        states = []
        for begin, end in itertools.pairwise(cuts):
            batch = (
                whole.block_table,
                torch.tensor([0, end - begin], dtype=torch.int32),
                torch.tensor([end], dtype=torch.int32),
            )
            chunkattn.append_kv(k[begin:end], v[begin:end], k_cache, v_cache, *batch, backend=backend)
            states.append(
                chunkattn.attention(whole.q[begin:end], k_cache, v_cache, *batch, return_lse=True, backend=backend)
            )
        joined = torch.cat([s[0] for s in states]), torch.cat([s[1] for s in states])
        assert_state_close(joined, expected, context=f"chunks at {cuts}: ")


@pytest.mark.parametrize("kv_len", [15, 16, 17, 255, 256, 257, 4097])
@pytest.mark.parametrize("page_size", [1, 8, 16, 32, 64, 128, 256])
def test_d05_needles_are_found_on_every_page(page_size, kv_len, attend):
    edge = (kv_len - 1) // page_size * page_size
    targets = [[0, kv_len - 1, edge, max(edge - 1, 0), kv_len // 2]]
    pages = -(-kv_len // page_size)
    case = AttentionCase(
        "d05", (5,), (kv_len,), page_size=page_size, causal=False, num_q_heads=2, num_kv_heads=2, spare_pages=2 * pages
    )
    contents = needle_probe(case, targets)
    first = attend(build(case, contents))
    assert_rows_close(first[0], needle_expected(case, contents, targets))
    moved = attend(build(case, contents, page_seed=1))
    assert_bitwise_equal(moved[0], first[0])
    assert_bitwise_equal(moved[1], first[1])


def test_d06_window_of_four_tokens_is_left_three(attend):
    case = AttentionCase("d06", (3,), (10,), page_size=4, window=(3, -1))
    assert_probe(attend(build(case, uniform_probe(case))), [6.5, 7.5, 8.5], [math.log(4)] * 3)
    wider = case.but(window=(4, -1))
    assert_probe(attend(build(wider, uniform_probe(wider))), [6, 7, 8], [math.log(5)] * 3)


def test_d07_window_without_causal_mask(attend):
    case = AttentionCase(
        "d07", (300,), (4096,), num_q_heads=8, num_kv_heads=2, head_dim=128, causal=False, window=(333, -1)
    )
    state = attend(build(case, uniform_probe(case, unit=1.0)))
    rows = [0, 127, 128, 299]
    assert_probe(state, lse=[math.log(n) for n in (633, 506, 505, 334)], rows=rows)
    assert float(state[1][0, 0]) == pytest.approx(6.450470, abs=1e-5)
    case = case.but(dtype=torch.float32)
    state = attend(build(case, uniform_probe(case)))
    assert_probe(state, out=[3780.0, 3929.5], rows=[0, 299])


def test_d08_pages_left_of_the_window_are_never_read(attend):
    case = AttentionCase("d08", (4,), (100,), window=(31, -1), dtype=torch.float32)
    inputs = build(case, uniform_probe(case))
    assert inputs.k_cache[inputs.block_table[0, :4].long()].isnan().all()
    poisoned = attend(inputs)
    assert_probe(poisoned, [81.5, 82.5, 83.5, 84.5], [3.465736] * 4)
    inputs.block_table[0, :4] = -1
    unmapped = attend(inputs)
    # The same pages with live keys in them.
    live = build(case.but(window=(-1, -1)), uniform_probe(case))
    valid = attend(dataclasses.replace(live, case=case))
    for other in (unmapped, valid):
        assert_bitwise_equal(other[0], poisoned[0])
        assert_bitwise_equal(other[1], poisoned[1])


@pytest.mark.parametrize("causal", [True, False])
def test_d09_tails_of_tiles_are_masked(causal, attend):
    for kv_len in (1, 63, 64, 65, 127, 128, 129, 255, 256, 257):
        case = AttentionCase("d09", (1,), (kv_len,), causal=causal, dtype=torch.float32)
        assert_probe(attend(build(case, uniform_probe(case))), [(kv_len + 1) / 2], [math.log(kv_len)])
    case = AttentionCase("exact tile", (64,), (64,), dtype=torch.float32)
    visible = torch.arange(1, 65)
    state = attend(build(case, uniform_probe(case)))
    assert_probe(state, ((visible + 1) / 2).tolist(), visible.log().tolist())


def test_d10_softcap_comes_after_scale_and_before_mask(attend):
    case = AttentionCase("d10a", (1,), (65,), causal=False, softcap=1.0, dtype=torch.float32)
    assert_probe(attend(build(case, uniform_probe(case))), lse=[4.174387])

    case = AttentionCase("d10b", (1,), (2,), num_q_heads=1, num_kv_heads=1, dtype=torch.float32, softmax_scale=0.5)
    contents = random_contents(case)
    for tensor, values in ((contents.q, [8.0]), (contents.keys[0], [1.0, 0.0]), (contents.values[0], [1.0, 0.0])):
        tensor.zero_()
        tensor[:, 0, 0] = torch.tensor(values)
    capped = case.but(softcap=2.0)
    assert float(attend(build(capped, contents))[0][0, 0, 0]) == pytest.approx(0.873034, abs=2e-6)
    assert float(attend(build(case, contents))[0][0, 0, 0]) == pytest.approx(0.982014, abs=2e-6)

    case = AttentionCase("d10c", (7, 1), (60, 33), dtype=torch.float32)
    outs = []
    for softcap in (0.0, 5.0, 50.0):
        # Scores of a few units, so that even a cap of 50 bends them by more than rounding.
        inputs = build(case.but(softcap=softcap, softmax_scale=1.0))
        state = attend(inputs)
        assert_state_close(state, inputs.expected())
        outs.append(state[0])
    for a, b in ((0, 1), (1, 2), (0, 2)):
        with pytest.raises(AssertionError):
            assert_rows_close(outs[a], outs[b].double())


def test_d11_alibi_counts_from_the_absolute_query_position(attend, attend_with, backend):
    case = AttentionCase("d11", (4,), (10,), num_q_heads=1, num_kv_heads=1, dtype=torch.float32, alibi="head")
    contents = uniform_probe(case)
    inputs = build(case, contents)
    slopes = torch.tensor([0.5])
    whole = attend_with(inputs, alibi_slopes=slopes)
    out, lse = [5.676470, 6.607765, 7.559610, 8.526342], [0.902089, 0.914267, 0.921581, 0.925991]
    assert_probe(whole, out, lse)
    for row in range(4):
        # The row's window is the keys after the first six; the first six alone end at position 5, so that their
        # bias is short by the row's distance to it.
        rest = attend_with(inputs.recut([(0, row, row + 1)]), alibi_slopes=slopes, window=(row, -1))
        prefix_inputs = build(case.but(q_lens=(1,), kv_lens=(6,), alibi="head"), type(contents)(
            contents.q[row : row + 1], [contents.keys[0][:6]], [contents.values[0][:6]]
        ))  # fmt: skip
        prefix = attend_with(prefix_inputs, alibi_slopes=slopes)
        merged = chunkattn.merge_states(*rest, prefix[0], prefix[1] - 0.5 * (row + 1), backend=backend)
        assert_probe(merged, out[row : row + 1], lse[row : row + 1])
    per_request = attend_with(inputs, alibi_slopes=slopes[None])
    assert_probe(per_request, out, lse)


@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
def test_d12_a_sink_enters_the_denominator_once(kv_dtype, attend_with):
    case = AttentionCase(
        "d12", (1,), (3,), dtype=torch.float32, kv_dtype=kv_dtype, sinks=True, num_q_heads=4, num_kv_heads=2
    )
    sinks = torch.full((4,), LN2)
    ones = {} if kv_dtype is None else {"k_scale": torch.tensor(1.0), "v_scale": torch.tensor(1.0)}
    for num_splits in (None, 1, 2, 4, 8):
        inputs = build(case, uniform_probe(case))
        state = attend_with(inputs, sinks=sinks, num_splits=num_splits, **ones)
        assert_probe(state, [1.2], [math.log(5)])
        empty = build(case.but(kv_lens=(0,)))
        assert_probe(attend_with(empty, sinks=sinks, num_splits=num_splits, **ones), [0.0], [LN2])
        # A window that leaves all splits but the last empty.
        far = case.but(kv_lens=(1100,), window=(2, -1), kv_dtype=None)
        state = attend_with(build(far, uniform_probe(far)), sinks=sinks, num_splits=num_splits)
        assert_probe(state, [(1098 + 1099 + 1100) / 5], [math.log(5)])
    plain = build(case.but(sinks=False), uniform_probe(case))
    assert_probe(attend_with(plain, **ones), [2.0], [math.log(3)])


def test_d12_merging_counts_the_sink_of_one_state(attend_with, backend):
    """out * exp(lse) is the numerator, so merging is right when exactly one state carries the sink."""
    case = AttentionCase("sink merge", (1,), (40,), dtype=torch.float32, sinks=True)
    inputs = build(case)
    expected = inputs.expected()
    left = attend_with(inputs, window=(15, -1))
    prefix = (
        inputs.q,
        inputs.k_cache,
        inputs.v_cache,
        inputs.block_table,
        inputs.cu_seqlens_q,
        torch.tensor([24]).int(),
    )
    right = chunkattn.attention(*prefix, return_lse=True, backend=backend)
    assert_state_close(right, attention_oracle(*prefix))
    assert_state_close(chunkattn.merge_states(*left, *right, backend=backend), expected)


INFINITE = AttentionCase("infinite", (3, 1, 20), (40, 17, 150), num_q_heads=4, num_kv_heads=2)


@pytest.mark.parametrize(
    "case",
    [
        INFINITE,
        INFINITE.but(name="invariant", invariant=True),
        INFINITE.but(name="splits", num_splits=3),
        INFINITE.but(name="sinks", sinks=True),
        INFINITE.but(name="fp16", dtype=torch.float16),
        INFINITE.but(name="fp32", dtype=torch.float32),
    ],
    ids=str,
)
def test_a_score_of_infinity_makes_its_rows_nan_and_their_lse_too(case, attend):
    """A key of infinity: the head that scores it +inf has NaN in the rows that see it; one with -inf has numbers."""
    inputs = build(case)
    inputs.q[:, 0], inputs.q[:, 1] = inputs.q[:, 0].abs() + 0.1, -inputs.q[:, 1].abs() - 0.1
    page, slot = divmod(140, case.page_size)  # the last request's queries are at 130 to 149
    inputs.k_cache[inputs.block_table[2, page], slot, 0] = math.inf
    out, lse = attend(inputs)
    assert_state_close((out, lse), inputs.expected(), context=f"{case}: ")
    seen = torch.zeros(24, 4, dtype=torch.bool)
    seen[4 + 140 - 130 :, 0] = True
    assert torch.equal(lse.isnan(), seen)
    assert torch.equal(out.isnan(), seen[..., None].expand(out.shape))

"""FlashAttention's function of a KV cache against dense float64 attention."""

from __future__ import annotations

import pytest
import torch
from dense_attention import dense_attention
from packed_sequences import INT32, check, ends, expected_packed, paged

import chunkattn
from chunkattn.compat import flash_attn, flash_attn_interface
from chunkattn.testing import assert_bitwise_equal, assert_lse_close, assert_rows_close, rotate


def cache_case(dtype, new=3, queries=3, rows=4, slots=40, heads=(4, 2), dim=32):
    torch.manual_seed(2)
    k_cache, v_cache = torch.randn(2, rows, slots, heads[1], dim).to(dtype).unbind()
    q = torch.randn(2, queries, heads[0], dim).to(dtype)
    k, v = torch.randn(2, 2, new, heads[1], dim).to(dtype).unbind()
    return q, k_cache.clone(), v_cache.clone(), k, v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch_idx", [None, [3, 1]])
@pytest.mark.parametrize("leftpad", [None, [2, 5]])
@pytest.mark.parametrize(("queries", "new"), [(1, 1), (3, 3), (5, 2), (2, 0)])
def test_dense_cache(dtype, batch_idx, leftpad, queries, new):
    q, k_cache, v_cache, k, v = cache_case(dtype, new, queries)
    before = [7, 31]
    rows = batch_idx or [0, 1]
    k_want, v_want = k_cache.clone(), v_cache.clone()
    states = []
    for i, (row, length) in enumerate(zip(rows, before)):
        k_want[row, length : length + new], v_want[row, length : length + new] = k[i], v[i]
        keys = slice(leftpad[i] if leftpad else 0, length + new)
        states.append(dense_attention(q[i], k_want[row, keys], v_want[row, keys], causal=True))
    out, lse = flash_attn.flash_attn_with_kvcache(
        q, k_cache, v_cache, *((k, v) if new else ()), cache_seqlens=torch.tensor(before, dtype=INT32),
        cache_batch_idx=None if batch_idx is None else torch.tensor(batch_idx, dtype=INT32),
        cache_leftpad=None if leftpad is None else torch.tensor(leftpad, dtype=INT32),
        causal=True, return_softmax_lse=True,
    )  # fmt: skip
    for i, (expected, expected_lse) in enumerate(states):
        assert_rows_close(out[i], expected)
        assert_lse_close(lse[i].t(), expected_lse)
    assert_bitwise_equal(k_cache, k_want)
    assert_bitwise_equal(v_cache, v_want)


def test_whole_cache_is_the_default():
    q, k_cache, v_cache, _, _ = cache_case(torch.float32, rows=2)
    out = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache)
    for i in range(2):
        assert_rows_close(out[i], dense_attention(q[i], k_cache[i], v_cache[i])[0])
    padded = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=40)
    assert_bitwise_equal(padded, out)
    assert_bitwise_equal(flash_attn.flash_attn_func(q, k_cache, v_cache), out)


@pytest.mark.parametrize("dim", [0, 257, 300])
def test_the_head_dim_that_came_is_reported(dim):
    q, k_cache, v_cache, k, v = cache_case(torch.float32, dim=dim)
    with pytest.raises(ValueError, match=rf"^k_cache: expected a head dim from 1 to 256, got {dim}$"):
        flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=7)
    with pytest.raises(ValueError, match=rf"^k: expected a head dim from 1 to 256, got {dim}$"):
        flash_attn.flash_attn_func(q, k_cache[: len(q)], v_cache[: len(q)])
    lengths = torch.tensor([7, 7], dtype=INT32)
    for name, dims in (("headdim", {"headdim": dim}), ("headdim_v", {"headdim": 32, "headdim_v": dim})):
        with pytest.raises(ValueError, match=rf"^{name}: expected a head dim from 1 to 256, got {dim}$"):
            flash_attn_interface.get_scheduler_metadata(2, 3, 40, 4, 2, cache_seqlens=lengths, **dims)


@pytest.mark.parametrize("dim", [32, 27])
def test_paged_append_of_packed_tokens(dim):
    torch.manual_seed(3)
    before, new, q_lens = [7, 20, 0], [3, 1, 5], [2, 1, 5]
    k, v = torch.randn(2, sum(before) + sum(new), 2, dim).bfloat16().unbind()
    q = torch.randn(sum(q_lens), 4, dim).bfloat16()
    after = [a + b for a, b in zip(before, new)]
    (k_full, table), (v_full, _) = paged(k, after, 16), paged(v, after, 16)
    history = torch.cat([torch.arange(a) < b for a, b in zip(after, before)])
    (k_pool, _), (v_pool, _) = (paged(torch.where(history[:, None, None], x, float("nan")), after, 16) for x in (k, v))
    out, lse = flash_attn_interface.flash_attn_with_kvcache(
        q, k_pool, v_pool, k[~history], v[~history], cache_seqlens=torch.tensor(before, dtype=INT32),
        page_table=table, cu_seqlens_q=ends(q_lens), cu_seqlens_k_new=ends(new), max_seqlen_q=5, causal=True,
        return_softmax_lse=True,
    )  # fmt: skip
    for pool, full in ((k_pool, k_full), (v_pool, v_full)):
        assert_bitwise_equal(pool.nan_to_num(), full.nan_to_num())
    check(out, lse, expected_packed(q, k, v, q_lens, after, causal=True))


def turn(x, angles, at, interleaved):
    rows = [rotate(row, angles[p].cos(), angles[p].sin(), interleaved=interleaved) for row, p in zip(x, at)]
    return torch.stack(rows)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rotary_dim", [16, 32])
def test_rotary(interleaved, causal, rotary_dim):
    q, k_cache, v_cache, k, v = cache_case(torch.float32, new=2, queries=3, rows=2)
    angles = torch.rand(64, rotary_dim // 2) * 6
    before = torch.tensor([7, 31], dtype=INT32)
    untouched = q.clone()
    out = flash_attn.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, angles.cos(), angles.sin(), before, rotary_interleaved=interleaved, causal=causal
    )
    assert_bitwise_equal(q, untouched)
    for i, length in enumerate(before.tolist()):
        at = length + torch.arange(2)
        turned = turn(k[i], angles, at, interleaved)
        assert_rows_close(k_cache[i, length : length + 2], turned)
        at = length + (torch.arange(3) if causal else torch.zeros(3, dtype=torch.long))
        queries = turn(q[i], angles, at, interleaved)
        expected = dense_attention(queries, k_cache[i, : length + 2], v_cache[i, : length + 2], causal=causal)[0]
        assert_rows_close(out[i], expected)


def test_descales_of_a_quantised_cache():
    torch.manual_seed(4)
    pool = torch.randn(2, 6, 16, 2, 32).clamp(-4, 4).to(torch.float8_e4m3fn)
    q = torch.randn(2, 1, 4, 32).bfloat16()
    table = torch.tensor([[3, 1], [5, 0]], dtype=INT32)
    k_scale, v_scale = torch.tensor([0.5, 2.0]), torch.tensor([1.5, 0.25])
    out = flash_attn_interface.flash_attn_with_kvcache(
        q, *pool, cache_seqlens=torch.tensor([20, 32], dtype=INT32), page_table=table,
        k_descale=k_scale.expand(2, 2), v_descale=v_scale.repeat(2, 1),
    )  # fmt: skip
    for i, length in enumerate((20, 32)):
        k, v = ((pool[s].double()[table[i].long()].flatten(0, 1))[:length] for s in (0, 1))
        assert_rows_close(out[i], dense_attention(q[i], k * k_scale[:, None], v * v_scale[:, None])[0])


def test_scheduler_metadata_is_a_plan():
    q, k_cache, v_cache, k, v = cache_case(torch.bfloat16, rows=2)
    lengths = torch.tensor([7, 31], dtype=INT32)
    plan = flash_attn_interface.get_scheduler_metadata(2, 3, 40, 4, 2, 32, lengths, max_seqlen_k_new=3, causal=True)
    planned = flash_attn_interface.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True, scheduler_metadata=plan
    )
    out = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths + 3, causal=True)
    assert_rows_close(planned, out.double())
    with pytest.raises(ValueError, match=r"^scheduler_metadata: "):
        flash_attn.flash_attn_with_kvcache(
            q, k_cache, v_cache, cache_seqlens=lengths, causal=True, scheduler_metadata=plan
        )


@pytest.mark.parametrize("leftpad", [None, [2, 5]])
@pytest.mark.parametrize("page_size", [1, 8])
def test_rows_of_a_block_table_and_where_their_keys_begin(page_size, leftpad):
    q, k_cache, v_cache, k, v = cache_case(torch.bfloat16)
    lengths, chosen = torch.tensor([7, 31], dtype=INT32), torch.tensor([3, 1], dtype=INT32)
    pad = None if leftpad is None else torch.tensor(leftpad, dtype=INT32)
    order = torch.randperm(k_cache.shape[0] * 40 // page_size)  # scattered pages of what the dense cache holds
    table = order.view(k_cache.shape[0], -1)
    pools = []
    for cache in (k_cache, v_cache):
        pool = torch.empty(len(order), page_size, *cache.shape[2:]).to(cache.dtype)
        pool[table] = cache.unflatten(1, (-1, page_size))
        pools.append(pool)
    options = {"cache_seqlens": lengths, "cache_batch_idx": chosen, "cache_leftpad": pad, "causal": True}
    want = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, **options)
    plan = flash_attn_interface.get_scheduler_metadata(
        2, 3, 40, 4, 2, 32, lengths, max_seqlen_k_new=3, cache_leftpad=pad, page_size=page_size, causal=True
    )
    out = flash_attn_interface.flash_attn_with_kvcache(
        q, *pools, k, v, page_table=table.to(INT32), scheduler_metadata=plan, **options
    )
    assert_rows_close(out, want.double())
    for pool, cache in zip(pools, (k_cache, v_cache)):  # appended to as well
        assert_bitwise_equal(pool[table].flatten(1, 2), cache)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"cache_seqlens": 38}, "cache_seqlens"),
        ({"cache_seqlens": torch.tensor([-9, 3], dtype=INT32)}, "cache_seqlens"),
        ({"cache_batch_idx": torch.tensor([4, 0], dtype=INT32)}, "cache_batch_idx"),
        ({"cache_batch_idx": torch.tensor([-1, 0], dtype=INT32)}, "cache_batch_idx"),
        ({"cache_leftpad": torch.tensor([0, -1], dtype=INT32)}, "cache_leftpad"),
        ({"block_table": torch.full((2, 2), 9, dtype=INT32)}, "block_table"),
        ({"page_table": torch.full((2, 2), 9, dtype=INT32)}, "page_table"),
        ({"block_table": torch.tensor([[9, 1], [9, 2]], dtype=INT32), "cache_seqlens": 45}, "block_table"),  # history
        ({"scheduler_metadata": {}, "window_size": (-1, 2), "causal": False}, "scheduler_metadata"),
        ({"scheduler_metadata": {}, "cache_seqlens": 8}, "scheduler_metadata"),
        ({"scheduler_metadata": {"num_heads_q": 8}}, "scheduler_metadata"),
        ({"scheduler_metadata": {"batch_size": 1, "cache_seqlens": ends([7])[1:]}}, "scheduler_metadata"),
        ({"scheduler_metadata": {"num_splits": 2}, "num_splits": 3}, "scheduler_metadata"),
        ({"scheduler_metadata": {"cu_seqlens_q": ends([2, 4])}}, "scheduler_metadata"),
        ({"scheduler_metadata": torch.zeros(4, dtype=INT32)}, "scheduler_metadata"),
        ({"s_aux": torch.zeros(3)}, "s_aux"),
        ({"q": torch.zeros(6, 4, 32), "cu_seqlens_q": ends([3, 4])}, "cu_seqlens_q"),
        (
            {
                "k": torch.zeros(3, 2, 32),
                "v": torch.zeros(3, 2, 32),
                "cu_seqlens_k_new": ends([3, 0]),
                "cache_seqlens": torch.tensor([7, 45], dtype=INT32),
            },
            "cache_seqlens",
        ),
        ({"q": torch.zeros(2, 3, 4, 40)}, "q"),
        ({"q": torch.zeros(2, 3, 4, 28)}, "q"),  # padded to multiples of 8, these three fit
        ({"k": torch.zeros(2, 3, 2, 28)}, "k"),
        ({"v": torch.zeros(2, 3, 2, 28)}, "v"),
        ({"q": torch.zeros(2, 3, 3, 32)}, "q"),
        ({"alibi_slopes": torch.zeros(3)}, "alibi_slopes"),
        (
            {"alibi_slopes": torch.ones(4), "q": torch.zeros(2, 5, 4, 32), "cache_seqlens": 0, "causal": False},
            "alibi_slopes",
        ),
        ({"softcap": -1.0}, "softcap"),
        ({"num_splits": 9999}, "num_splits"),
        ({"window_size": (-1,)}, "window_size"),
        ({"k_descale": torch.ones(5)}, "k_descale"),
        ({"v_descale": torch.ones(2)}, "v_descale"),
        ({"rotary_cos": torch.ones(64, 8)}, "rotary_cos"),
        ({"rotary_sin": torch.ones(64, 8)}, "rotary_sin"),
        ({"rotary_cos": torch.ones(8, 8), "rotary_sin": torch.ones(8, 8)}, "rotary_cos"),
        ({"v": None}, "v"),
        ({"k": None, "v": None, "cu_seqlens_k_new": ends([3, 3])}, "cu_seqlens_k_new"),
        ({"k": None, "v": None, "rotary_cos": torch.ones(64, 8), "rotary_sin": torch.ones(64, 8)}, "rotary_cos"),
        ({"v_cache": torch.zeros(4, 40, 3, 32)}, "v_cache"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_errors_blame_what_the_caller_gave_and_nothing_is_written(changes, named):
    q, k_cache, v_cache, k, v = cache_case(torch.float32)
    planned_otherwise = changes.get("scheduler_metadata")
    if isinstance(planned_otherwise, dict):
        plan = {
            "batch_size": 2, "max_seqlen_q": 3, "max_seqlen_k": 40, "num_heads_q": 4, "num_heads_kv": 2, "headdim": 32,
            "cache_seqlens": torch.tensor([7, 7], dtype=INT32), "max_seqlen_k_new": 3, "causal": True,
        }  # fmt: skip
        metadata = flash_attn_interface.get_scheduler_metadata(**{**plan, **planned_otherwise})
        changes = {**changes, "scheduler_metadata": metadata}
    given = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v, "cache_seqlens": 7, "causal": True}
    given.update(changes)
    before = k_cache.clone(), v_cache.clone()
    with pytest.raises((ValueError, TypeError, chunkattn.UnsupportedError), match=rf"^{named}: "):
        flash_attn.flash_attn_with_kvcache(**given)
    for cache, untouched in zip((k_cache, v_cache), before):
        assert_bitwise_equal(cache, untouched)

"""FlashAttention's functions against dense float64 attention."""

from __future__ import annotations

import inspect

import pytest
import torch
from dense_attention import dense_attention

import chunkattn
from chunkattn.compat import flash_attn, flash_attn_interface
from chunkattn.testing import assert_bitwise_equal, assert_lse_close, assert_rows_close, rotate

INT32 = torch.int32
Q_LENS, K_LENS = [5, 1, 0, 9, 3], [5, 20, 4, 33, 1]


def ends(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(INT32)


def packed(dtype=torch.bfloat16, heads=(4, 2), dims=(32, 32), seed=0):
    torch.manual_seed(seed)
    q = torch.randn(sum(Q_LENS), heads[0], dims[0]).to(dtype)
    k = torch.randn(sum(K_LENS), heads[1], dims[0]).to(dtype)
    return q, k, torch.randn(sum(K_LENS), heads[1], dims[1]).to(dtype)


def expected_packed(q, k, v, q_lens=Q_LENS, k_lens=K_LENS, slopes=None, **options):
    states = [
        dense_attention(*parts, slopes=None if slopes is None else slopes.expand(len(q_lens), -1)[i], **options)
        for i, parts in enumerate(zip(q.split(q_lens), k.split(k_lens), v.split(k_lens)))
    ]
    return tuple(torch.cat(parts) for parts in zip(*states))


def check(out, lse_heads_first, expected):
    assert_rows_close(out, expected[0])
    assert_lse_close(lse_heads_first.t(), expected[1])


def paged(x, lengths, page_size, seed=0):
    """A scattered pool of packed segments, garbage elsewhere, and its table."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-n // page_size) for n in lengths]
    order = torch.randperm(sum(counts) + 3, generator=generator).to(INT32)
    pool = torch.full((len(order), page_size, *x.shape[1:]), float("nan")).to(x.dtype)
    table = torch.full((len(lengths), max(counts)), -7, dtype=INT32)
    start = 0
    for row, (count, part) in enumerate(zip(counts, x.split(lengths))):
        table[row, :count] = order[start : start + count]
        start += count
        for position in range(part.shape[0]):
            pool[table[row, position // page_size], position % page_size] = part[position]
    return pool, table


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"causal": True, "window": (3, -1)},
        {"window": (2, 4)},
        {"causal": True, "softcap": 5.0},
        {"scale": 0.3},
    ],
    ids=str,
)
def test_varlen_packed(dtype, options):
    q, k, v = packed(dtype)
    given = dict(options)
    renamed = {{"window": "window_size", "scale": "softmax_scale"}.get(name, name): x for name, x in given.items()}
    cu_q, cu_k = ends(Q_LENS), ends(K_LENS)
    out, lse, _ = flash_attn.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, max(Q_LENS), max(K_LENS), return_attn_probs=True, **renamed
    )
    check(out, lse, expected_packed(q, k, v, **options))
    again, again_lse = flash_attn_interface.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, max(Q_LENS), max(K_LENS), num_splits=0, return_attn_probs=True, **renamed
    )
    assert_bitwise_equal(again, out)
    assert_bitwise_equal(again_lse, lse)


@pytest.mark.parametrize("page_size", [1, 7, 16])
def test_varlen_block_table(page_size):
    q, k, v = packed()
    (k_pool, table), (v_pool, _) = paged(k, K_LENS, page_size), paged(v, K_LENS, page_size)
    out, lse = flash_attn.flash_attn_varlen_func(
        q, k_pool, v_pool, ends(Q_LENS), ends(K_LENS), 9, 33, causal=True, block_table=table, return_softmax_lse=True
    )
    check(out, lse, expected_packed(q, k, v, causal=True))
    used = torch.tensor(K_LENS, dtype=INT32)
    same = flash_attn.flash_attn_varlen_func(
        q, k_pool, v_pool, max_seqlen_q=9, cu_seqlens_q=ends(Q_LENS), max_seqlen_k=33, seqused_k=used, causal=True,
        page_table=table, out=torch.full_like(out, float("nan")),
    )  # fmt: skip
    assert_bitwise_equal(same, out)


def test_varlen_equal_segments_are_pages():
    torch.manual_seed(1)
    q, k, v = torch.randn(8, 4, 16), torch.randn(24, 4, 16), torch.randn(24, 4, 16)
    out = flash_attn.flash_attn_varlen_func(q, k, v, ends([4, 4]), ends([12, 12]), 4, 12, causal=True)
    assert_rows_close(out, expected_packed(q, k, v, [4, 4], [12, 12], causal=True)[0])


@pytest.mark.parametrize("per_sequence", [False, True])
def test_varlen_alibi_and_sinks(per_sequence):
    q, k, v = packed(torch.float32)
    slopes = torch.rand(len(Q_LENS), 4) if per_sequence else torch.rand(4)
    sinks = torch.randn(4)
    out, lse = flash_attn.flash_attn_varlen_func(
        q, k, v, ends(Q_LENS), ends(K_LENS), 9, 33, causal=True, alibi_slopes=slopes, s_aux=sinks,
        return_softmax_lse=True,
    )  # fmt: skip
    check(out, lse, expected_packed(q, k, v, causal=True, slopes=slopes, sinks=sinks))


@pytest.mark.parametrize("window", [(-1, -1), (3, 2), (-1, 4), (2, -1)])
@pytest.mark.parametrize("per_sequence", [False, True])
def test_varlen_alibi_on_both_sides(window, per_sequence):
    q, k, v = packed(torch.float32)
    slopes = torch.rand(len(Q_LENS), 4) if per_sequence else torch.rand(4)
    sinks = torch.randn(4)
    k_lens = [max(a, b) for a, b in zip(Q_LENS, K_LENS)]
    k, v = torch.randn(2, sum(k_lens), 2, 32).unbind()
    options = {"alibi_slopes": slopes, "s_aux": sinks, "window_size": window, "softcap": 4.0}
    out, lse = flash_attn.flash_attn_varlen_func(
        q, k, v, ends(Q_LENS), ends(k_lens), 9, max(k_lens), return_softmax_lse=True, **options
    )
    check(out, lse, expected_packed(q, k, v, Q_LENS, k_lens, slopes=slopes, sinks=sinks, window=window, softcap=4.0))
    (k_pool, table), (v_pool, _) = paged(k, k_lens, 5), paged(v, k_lens, 5)
    again = flash_attn.flash_attn_varlen_func(
        q, k_pool, v_pool, ends(Q_LENS), ends(k_lens), block_table=table, out=torch.empty_like(out), **options
    )
    assert_rows_close(again, out.double())


def test_varlen_alibi_of_more_queries_than_keys_is_refused():
    q, k, v = packed()
    with pytest.raises(chunkattn.UnsupportedError, match=r"^alibi_slopes: "):
        flash_attn.flash_attn_varlen_func(q, k, v, ends([18]), ends([4]), 18, 4, alibi_slopes=torch.rand(4))


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(59, 59), (40, 24), (111, 96)])
def test_varlen_odd_head_dims(head_dim, head_dim_v):
    q, k, v = packed(dims=(head_dim, head_dim_v))
    out, lse = flash_attn.flash_attn_varlen_func(
        q, k, v, ends(Q_LENS), ends(K_LENS), 9, 33, causal=True, return_softmax_lse=True
    )
    check(out, lse, expected_packed(q, k, v, causal=True))


def test_varlen_used_queries():
    q, k, v = packed()
    used = torch.tensor([4, 0, 0, 9, 1], dtype=INT32)
    out, lse = flash_attn_interface.flash_attn_varlen_func(
        q, k, v, ends(Q_LENS), ends(K_LENS), 9, 33, seqused_q=used, causal=True, return_attn_probs=True
    )
    parts = [x[:n] for x, n in zip(q.split(Q_LENS), used.tolist())]
    expected = expected_packed(torch.cat(parts), k, v, used.tolist(), causal=True)
    kept = torch.cat([torch.arange(n) < u for n, u in zip(Q_LENS, used.tolist())])
    check(out[kept], lse[:, kept], expected)
    assert not out[~kept].any()
    assert torch.isneginf(lse[:, ~kept]).all()


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


REFUSED = {
    "dropout_p": 0.1,
    "qv": torch.zeros(1),
    "q_descale": torch.ones(1),
    "attention_chunk": 64,
    "sm_margin": 2,
    "scheduler_metadata": torch.zeros(4, dtype=INT32),
    "k_descale": torch.rand(5, 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_varlen_refuses_by_name(name):
    q, k, v = packed()
    with pytest.raises(chunkattn.UnsupportedError, match=rf"^{name}: "):
        flash_attn.flash_attn_varlen_func(q, k, v, ends(Q_LENS), ends(K_LENS), 9, 33, **{name: REFUSED[name]})


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


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_seqlen_k": 32}, "max_seqlen_k"),
        ({"cu_seqlens_k": None}, "cu_seqlens_k"),
        ({"cu_seqlens_k": ends([5, 20, 4, 33, 2])}, "cu_seqlens_k"),
        ({"seqused_k": torch.full((5,), 34, dtype=INT32)}, "seqused_k"),
        ({"cu_seqlens_q": ends([5, 1, 0, 9, 4])}, "cu_seqlens_q"),
        ({"k": torch.zeros(63, 2, 32).int()}, "k"),
        ({"v": torch.zeros(62, 2, 32)}, "v"),
        ({"window_size": (-1,)}, "window_size"),
        ({"alibi_slopes": torch.zeros(3), "causal": True}, "alibi_slopes"),
        ({"out": torch.zeros(18, 4, 40)}, "out"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_varlen_errors_blame_what_the_caller_gave(changes, named):
    q, k, v = packed(torch.float32)
    given = {"q": q, "k": k, "v": v, "cu_seqlens_q": ends(Q_LENS), "cu_seqlens_k": ends(K_LENS), "max_seqlen_k": 33}
    with pytest.raises((ValueError, TypeError), match=rf"^{named}: "):
        flash_attn.flash_attn_varlen_func(**{**given, **changes})


NAMES = {
    flash_attn.flash_attn_varlen_func: "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p "
    "softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs block_table",
    flash_attn.flash_attn_with_kvcache: "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx "
    "cache_leftpad block_table softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits "
    "return_softmax_lse",
    flash_attn_interface.flash_attn_varlen_func: "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q "
    "seqused_k softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk softcap num_splits "
    "pack_gqa deterministic sm_margin return_attn_probs",
    flash_attn_interface.flash_attn_with_kvcache: "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens "
    "cache_batch_idx cache_leftpad page_table cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale "
    "k_descale v_descale softmax_scale causal window_size attention_chunk softcap rotary_interleaved "
    "scheduler_metadata num_splits pack_gqa sm_margin return_softmax_lse",
}


@pytest.mark.parametrize("function", NAMES, ids=lambda f: f"{f.__module__.split('.')[-1]}.{f.__name__}")
def test_positional_order_is_theirs(function):
    parameters = inspect.signature(function).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == NAMES[function].split()

"""FlashAttention's function of packed sequences against dense float64 attention."""

from __future__ import annotations

import pytest
import torch
from packed_sequences import INT32, K_LENS, Q_LENS, check, ends, expected_packed, packed, paged

import chunkattn
from chunkattn.compat import flash_attn, flash_attn_interface
from chunkattn.testing import assert_bitwise_equal, assert_rows_close


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


@pytest.mark.parametrize(("name", "dims"), [("k", (0, 0)), ("k", (257, 257)), ("k", (300, 32)), ("v", (32, 300))])
def test_varlen_reports_the_head_dim_that_came(name, dims):
    """Any up to 256 is served, padded where it is no multiple of 8, so that none has to be one."""
    q, k, v = packed(dims=dims)
    with pytest.raises(ValueError, match=rf"^{name}: expected a head dim from 1 to 256, got {dims[name == 'v']}$"):
        flash_attn.flash_attn_varlen_func(q, k, v, ends(Q_LENS), ends(K_LENS), 9, 33)


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


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_seqlen_k": 32}, "max_seqlen_k"),
        ({"cu_seqlens_k": None}, "cu_seqlens_k"),
        ({"cu_seqlens_k": ends([5, 20, 4, 33, 2])}, "cu_seqlens_k"),
        ({"seqused_k": torch.full((5,), 34, dtype=INT32)}, "seqused_k"),
        ({"cu_seqlens_q": ends([5, 1, 0, 9, 4])}, "cu_seqlens_q"),
        ({"k": torch.zeros(63, 2, 32).int()}, "k"),
        ({"k": torch.zeros(63, 2, 36)}, "k"),  # 8-aligned, both are 40 long
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

"""FlashAttention 2's functions, ``from flash_attn import …``, over chunkattn's operators.

The positional order is FlashAttention 2's. What FlashAttention 3 and vLLM's fork call otherwise, or have besides, is
taken by keyword: page_table, cu_seqlens_q, seqused_q, seqused_k, k_descale, s_aux, out, …; `flash_attn_interface` has
FlashAttention 3's order.

Every argument is honoured or refused by name. Hints that change no result (`deterministic`: always so; `pack_gqa`,
`fa_version`; `max_seqlen_q`: read off the tensors) are accepted. Differences that remain:

- a row that sees no key has lse -inf, the neutral state of a merge, where FlashAttention 2 writes +inf;
- no gradients, no dropout;
- caches may have any page size, and fp32 tensors, fp8 and int8 caches work as well.

Log-sum-exps are [Hq, T] (packed) or [B, Hq, Sq], natural log, as theirs are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn import validate
from chunkattn.compat.contiguous_kv import PagedView, beginning_at, cache_view, packed_segments
from chunkattn.compat.flash_attn_append import append, ends_of, rotary_of
from chunkattn.compat.flash_attn_call import (
    AttentionCall,
    Window,
    given,
    name_of_rows,
    name_of_table,
    one_scale,
    one_table,
    used_rows,
    window_of,
)
from chunkattn.compat.head_dim import check_head_dims, padded, require_equal, write_back
from chunkattn.compat.refusals import foreign_names, refuse_unless
from chunkattn.compat.scheduler_metadata import SchedulerMetadata
from chunkattn.compat.tensor_arguments import ANY, check_optional_tensors, check_per_sequence, check_tensors


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window | None = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    page_table: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    attention_chunk: int = 0,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    s_aux: Tensor | None = None,
    out: Tensor | None = None,
    return_softmax_lse: bool = False,
    scheduler_metadata: SchedulerMetadata | None = None,
    fa_version: int | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Attention of packed sequences over packed or paged keys.

    Args:
        q: [T, Hq, D].
        k, v: [Tk, Hkv, D] and [Tk, Hkv, Dv], seen as a pool without a copy; or with a block table the pools [N, P, Hkv,
            D] and [N, P, Hkv, Dv].
        cu_seqlens_q: int32 [B+1].
        cu_seqlens_k: int32 [B+1]; with a block table only its differences count, and `seqused_k` can stand for it.
        max_seqlen_q: accepted; nothing depends on it.
        max_seqlen_k: at least the longest key sequence; needed without a block table.
        dropout_p: 0.
        softmax_scale: None is ``D ** -0.5``.
        causal: bottom-right aligned.
        window_size: keys beside the query (left, right), -1 or None = unlimited.
        softcap: 0 = off.
        alibi_slopes: fp32 [Hq] or [B, Hq]; the bias is -slope·|distance|. Where a query sees keys on its right, those
            are copied and attended in a second call; refused there for a sequence with more queries than keys.
        return_attn_probs: return (out, lse, empty) as FlashAttention 2 does.
        block_table, page_table: int32 [B, M], two names of one thing.
        seqused_q: int32 [B], how many of each sequence's queries count; the others' rows are 0, their lse -inf.
        seqused_k: int32 [B], key lengths instead of the differences of `cu_seqlens_k`.
        k_descale, v_descale: fp32 [], [1], [Hkv] or [B, Hkv] with equal rows; quantised pools.
        num_splits: KV splits, 0 = planned.
        s_aux: [Hq] sinks.
        out: [T, Hq, Dv] to write into.
        return_softmax_lse: return (out, lse), as vLLM's fork does.
        scheduler_metadata: from `get_scheduler_metadata` here.
        qv, q_descale, attention_chunk, sm_margin: only at their defaults.

    Returns:
        out [T, Hq, Dv], with lse [Hq, T] if asked for.

    Raises:
        UnsupportedError: an argument that can't be honoured, by name.
        ValueError, TypeError: as `chunkattn.attention`.

    Example:
        >>> import torch
        >>> from chunkattn.compat.flash_attn import flash_attn_varlen_func
        >>> q, k, v = torch.randn(3, 9, 8, 64).unbind()
        >>> ends = torch.tensor([0, 4, 9], dtype=torch.int32)
        >>> flash_attn_varlen_func(q, k, v, ends, ends, 5, 5, causal=True).shape
        torch.Size([9, 8, 64])
    """
    name = "flash_attn_varlen_func"
    refuse_unless(
        name,
        dropout_p=(dropout_p, 0.0),
        qv=(qv, None),
        q_descale=(q_descale, None),
        attention_chunk=(attention_chunk, 0),
        sm_margin=(sm_margin, 0),
    )
    table = one_table(block_table, page_table)
    keys, values = ("[Tk, Hkv, D]", "[Tk, Hkv, Dv]") if table is None else ("[N, P, Hkv, D]", "[N, P, Hkv, Dv]")
    check_tensors(q=(q, "[T, Hq, D]"), k=(k, keys), v=(v, values), cu_seqlens_q=(cu_seqlens_q, "[B+1]"))
    check_optional_tensors(
        cu_seqlens_k=(cu_seqlens_k, "[B+1]"),
        seqused_q=(seqused_q, "[B]"),
        seqused_k=(seqused_k, "[B]"),
        **{name_of_table(block_table): (table, "[B, M]")},
        k_descale=(k_descale, ANY),
        v_descale=(v_descale, ANY),
        s_aux=(s_aux, ANY),
        out=(out, ANY),
    )
    check_per_sequence(cu_seqlens_q.shape[0] - 1, seqused_q=seqused_q, seqused_k=seqused_k)
    if v.shape[:-1] != k.shape[:-1]:
        first = f"the first {'two' if table is None else 'three'} of k {list(k.shape[:-1])}"
        raise ValueError(f"v: expected {values} with {first}, got shape {list(v.shape)}")
    if seqused_k is None and cu_seqlens_k is None:
        raise ValueError("cu_seqlens_k: expected a tensor where seqused_k is None, got None")
    lengths = seqused_k if seqused_k is not None else torch.diff(given("cu_seqlens_k", cu_seqlens_k))
    head_dim, head_dim_v = q.shape[-1], v.shape[-1]
    require_equal("k", k, "q", q)
    check_head_dims(k=head_dim, v=head_dim_v)
    q, k, v = padded(q), padded(k), padded(v)
    if table is not None:
        view = PagedView(k, v, table.to(torch.int32))
    else:
        starts = given("cu_seqlens_k", cu_seqlens_k).to(torch.int32)
        view = packed_segments(k, v, starts, int(given("max_seqlen_k", max_seqlen_k)))
    rows = None
    if seqused_q is not None:
        total, starts = q.shape[0], cu_seqlens_q
        rows = used_rows(cu_seqlens_q, seqused_q)
        q, cu_seqlens_q = q[rows], torch.nn.functional.pad(seqused_q.cumsum(0), (1, 0))
    result, lse = AttentionCall(
        name,
        q,
        view,
        cu_seqlens_q.to(torch.int32),
        lengths.to(torch.int32),
        softmax_scale=validate.softmax_scale(softmax_scale, head_dim),
        causal=causal,
        window=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        k_descale=k_descale,
        v_descale=v_descale,
        sinks=s_aux,
        num_splits=num_splits,
        plan=scheduler_metadata,
        names={
            "k_cache": "k",
            "v_cache": "v",
            "seq_lens": "cu_seqlens_k" if seqused_k is None else "seqused_k",
            "block_table": "cu_seqlens_k" if table is None else name_of_table(block_table),
        },
    ).run(out if rows is None and head_dim_v % 8 == 0 else None)
    result = result[..., :head_dim_v]
    if rows is not None:
        used, used_lse = result, lse
        result, lse = used.new_zeros(total, *used.shape[1:]), lse.new_full((lse.shape[0], total), float("-inf"))
        result[rows], lse[:, rows] = used, used_lse
    if out is not None and out.data_ptr() != result.data_ptr():
        result = out.copy_(result)
    if return_attn_probs:
        return result, lse, result.new_empty(0)
    return (result, lse) if return_softmax_lse else result


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Attention of a batch of equally long sequences: q [B, Sq, Hq, D], k and v [B, Sk, Hkv, D].

    Arguments and errors are those of `flash_attn_varlen_func`; lse is [B, Hq, Sq].
    """
    refuse_unless("flash_attn_func", dropout_p=(dropout_p, 0.0))
    check_tensors(q=(q, "[B, Sq, Hq, D]"), k=(k, "[B, Sk, Hkv, D]"), v=(v, "[B, Sk, Hkv, Dv]"))
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k: expected {q.shape[0]} sequences, as many as q has, got {k.shape[0]}")
    with foreign_names(k_cache="k", v_cache="v"):
        out, lse = flash_attn_with_kvcache(
            q,
            k,
            v,
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=window_size,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            return_softmax_lse=True,
        )
    return (out, lse, out.new_empty(0)) if return_attn_probs else out


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    page_table: Tensor | None = None,
    qv: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    attention_chunk: int = 0,
    scheduler_metadata: SchedulerMetadata | None = None,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    s_aux: Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Attention over a cache, dense or paged, after appending new keys to it in place.

    Args:
        q: [B, Sq, Hq, D], or with `cu_seqlens_q` packed [T, Hq, D].
        k_cache, v_cache: [Bc, S, Hkv, D] rows, used without a copy; or with a block table pools [N, P, Hkv, D].
        k, v: [B, Sn, Hkv, D], or packed with `cu_seqlens_k_new`; written at `cache_seqlens`.
        rotary_cos, rotary_sin: [positions, rotary_dim / 2]; rotate k, and q (which stays untouched itself), from
            position `cache_seqlens` (or `rotary_seqlens`) on. Neither causal nor windowed: all of q at that position.
        cache_seqlens: lengths without the new tokens, int32 [B] or one number; None is the whole cache.
        cache_batch_idx: int32 [B], rows of a dense cache, or of the block table.
        cache_leftpad: int32 [B], the slot at which each sequence's keys begin, counted in `cache_seqlens`.
        block_table, page_table: int32 [B, M], two names of one thing.
        rotary_interleaved: pairs (2i, 2i+1); False pairs halves.
        cu_seqlens_q, cu_seqlens_k_new: int32 [B+1].
        max_seqlen_q: accepted; nothing depends on it.
        softmax_scale, causal, window_size, softcap, alibi_slopes, k_descale, v_descale, num_splits, s_aux,
            scheduler_metadata and the arguments that must have their defaults: as in `flash_attn_varlen_func`.

    Returns:
        out like q; with `return_softmax_lse` (out, lse [B, Hq, Sq], or [Hq, T] where q is packed).

    Raises:
        UnsupportedError: an argument that can't be honoured, by name.
        ValueError, TypeError: as `chunkattn.attention` and `chunkattn.append_kv`.

    Example:
        >>> import torch
        >>> from chunkattn.compat.flash_attn import flash_attn_with_kvcache
        >>> k_cache, v_cache = torch.zeros(2, 2, 128, 2, 64).unbind()
        >>> q, k, v = torch.randn(2, 1, 8, 64), torch.randn(2, 1, 2, 64), torch.randn(2, 1, 2, 64)
        >>> flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=7, causal=True).shape
        torch.Size([2, 1, 8, 64])
    """
    name = "flash_attn_with_kvcache"
    refuse_unless(
        name,
        qv=(qv, None),
        q_descale=(q_descale, None),
        attention_chunk=(attention_chunk, 0),
        sm_margin=(sm_margin, 0),
    )
    table = one_table(block_table, page_table)
    packed = cu_seqlens_q is not None
    pool = "[Bc, S, Hkv, {}]" if table is None else "[N, P, Hkv, {}]"
    new = "[B, Sn, Hkv, {}]" if cu_seqlens_k_new is None else "[Tn, Hkv, {}] with cu_seqlens_k_new"
    check_tensors(
        q=(q, "[T, Hq, D] with cu_seqlens_q" if packed else "[B, Sq, Hq, D]"),
        k_cache=(k_cache, pool.format("D")),
        v_cache=(v_cache, pool.format("Dv")),
    )
    check_optional_tensors(
        k=(k, new.format("D")),
        v=(v, new.format("Dv")),
        rotary_cos=(rotary_cos, "[positions, rotary_dim / 2]"),
        rotary_sin=(rotary_sin, "[positions, rotary_dim / 2]"),
        cache_seqlens=(None if isinstance(cache_seqlens, int) else cache_seqlens, ANY),
        cache_batch_idx=(cache_batch_idx, "[B]"),
        cache_leftpad=(cache_leftpad, "[B]"),
        **{name_of_table(block_table): (table, "[B, M]")},
        cu_seqlens_q=(cu_seqlens_q, "[B+1]"),
        cu_seqlens_k_new=(cu_seqlens_k_new, "[B+1]"),
        rotary_seqlens=(rotary_seqlens, "[B]"),
        k_descale=(k_descale, ANY),
        v_descale=(v_descale, ANY),
        s_aux=(s_aux, ANY),
    )
    head_dim, head_dim_v = q.shape[-1], v_cache.shape[-1]
    require_equal("q", q, "k_cache", k_cache)
    check_head_dims(k_cache=head_dim, v_cache=head_dim_v)
    batch_size = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if cu_seqlens_q is None:
        queries = q.shape[1]
        cu_seqlens_q = torch.arange(batch_size + 1, dtype=torch.int32, device=q.device) * queries
        q_tokens = q.flatten(0, 1)
    else:
        queries, q_tokens = 0, q
    if cache_seqlens is None:
        cache_seqlens = k_cache.shape[1] if table is None else table.shape[1] * k_cache.shape[1]
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((batch_size,), cache_seqlens, dtype=torch.int32, device=q.device)
    elif cache_seqlens.dim() == 0:
        cache_seqlens = cache_seqlens.expand(batch_size)
    lengths = cache_seqlens.to(torch.int32)
    check_per_sequence(
        batch_size,
        cache_seqlens=lengths,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
        rotary_seqlens=rotary_seqlens,
    )

    wide_k, wide_v, q_tokens = padded(k_cache), padded(v_cache), padded(q_tokens)
    view = cache_view(wide_k, wide_v, batch_size, table, cache_batch_idx)
    names = {
        "seq_lens": "cache_seqlens",
        "block_table": name_of_table(block_table) if table is not None else name_of_rows(cache_batch_idx),
    }
    after = lengths
    if cache_leftpad is not None:
        view, after = beginning_at(view, cache_leftpad), lengths - cache_leftpad.to(torch.int32)
    rotary = rotary_of(
        rotary_cos, rotary_sin, lengths if rotary_seqlens is None else rotary_seqlens, rotary_interleaved
    )
    if k is not None or v is not None:
        k, v = given("k", k), given("v", v)
        require_equal("k", k, "k_cache", k_cache)
        require_equal("v", v, "v_cache", v_cache)
        ends = ends_of(k, cu_seqlens_k_new)
        if ends.shape[0] != batch_size + 1:
            argument = "k" if cu_seqlens_k_new is None else "cu_seqlens_k_new"
            raise ValueError(f"{argument}: expected {batch_size} sequences, as many as q has, got {ends.shape[0] - 1}")
        after = after + torch.diff(ends)
        if rotary is not None:
            one_position = not causal and window_of(window_size) == (-1, -1)
            q_tokens = rotary.turned(q_tokens, cu_seqlens_q, advance=not one_position)
    elif rotary is not None or cu_seqlens_k_new is not None:
        argument = "cu_seqlens_k_new" if rotary is None else "rotary_cos"
        raise ValueError(f"{argument}: expected None without k and v, got a tensor")
    call = AttentionCall(
        name,
        q_tokens,
        view,
        cu_seqlens_q.to(torch.int32),
        after,
        softmax_scale=validate.softmax_scale(softmax_scale, head_dim),
        causal=causal,
        window=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        k_descale=k_descale,
        v_descale=v_descale,
        sinks=s_aux,
        num_splits=num_splits,
        plan=scheduler_metadata,
        names=names,
    )
    if k is not None and v is not None:
        call.check()  # before anything is written
        scales = one_scale(name, "k_descale", k_descale), one_scale(name, "v_descale", v_descale)
        append(k, v, view, cu_seqlens_k_new, after, scales, rotary, names)
        write_back(wide_k, k_cache)
        write_back(wide_v, v_cache)
    out, lse = call.run()
    out = out[..., :head_dim_v]
    if not packed:
        out = out.unflatten(0, (batch_size, queries))
        lse = lse.unflatten(1, (batch_size, queries)).transpose(0, 1).contiguous()
    return (out, lse) if return_softmax_lse else out

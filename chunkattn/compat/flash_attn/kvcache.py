"""Queries over a cache, dense or paged, that new keys are appended to."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn import validate
from chunkattn.compat.contiguous_kv import beginning_at, cache_view
from chunkattn.compat.flash_attn.append import append, ends_of, rotary_of
from chunkattn.compat.flash_attn.call import AttentionCall, Window, given, one_scale, one_table, window_of
from chunkattn.compat.head_dim import check_head_dims, padded, require_equal, write_back
from chunkattn.compat.refusals import refuse_unless
from chunkattn.compat.scheduler_metadata import SchedulerMetadata
from chunkattn.compat.tensor_arguments import ANY, check_optional_tensors, check_per_sequence, check_tensors


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
    table_name, table = one_table(block_table, page_table)
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
        **{table_name: (table, "[B, M]")},
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
    capacity = k_cache.shape[1] if table is None else table.shape[1] * k_cache.shape[1]
    lengths = _lengths(capacity if cache_seqlens is None else cache_seqlens, batch_size, q.device)
    check_per_sequence(
        batch_size,
        cache_seqlens=lengths,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
        rotary_seqlens=rotary_seqlens,
    )

    wide_k, wide_v, q_tokens = padded(k_cache), padded(v_cache), padded(q_tokens)
    view = cache_view(wide_k, wide_v, batch_size, table, cache_batch_idx)
    if table is None:
        table_name = "k_cache" if cache_batch_idx is None else "cache_batch_idx"
    names = {"seq_lens": "cache_seqlens", "block_table": table_name}
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


def _lengths(cache_seqlens: int | Tensor, batch_size: int, device: torch.device) -> Tensor:
    """int32 [B] of one number for every sequence, or of one each."""
    if isinstance(cache_seqlens, int):
        return torch.full((batch_size,), cache_seqlens, dtype=torch.int32, device=device)
    return (cache_seqlens.expand(batch_size) if cache_seqlens.dim() == 0 else cache_seqlens).to(torch.int32)

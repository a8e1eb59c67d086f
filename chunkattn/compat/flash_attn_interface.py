"""FlashAttention 3's functions, ``from flash_attn_interface import …``: its names and its positional order.

The work and the rules are those of `chunkattn.compat.flash_attn`. As in FlashAttention 3, `return_attn_probs` of the
packed function returns (out, lse).
"""

from __future__ import annotations

import torch
from torch import Tensor

import chunkattn
from chunkattn.compat import flash_attn
from chunkattn.compat.flash_attn_call import Window, window_of
from chunkattn.compat.refusals import refuse_unless
from chunkattn.types import Plan

Result = Tensor | tuple[Tensor, ...]


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """As `chunkattn.compat.flash_attn.flash_attn_varlen_func`."""
    return flash_attn.flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        softmax_scale=softmax_scale,
        causal=causal,
        qv=qv,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        window_size=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        num_splits=num_splits,
        pack_gqa=pack_gqa,
        deterministic=deterministic,
        sm_margin=sm_margin,
        return_softmax_lse=return_attn_probs,
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Plan | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Result:
    """As `chunkattn.compat.flash_attn.flash_attn_with_kvcache`."""
    return flash_attn.flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k,
        v,
        qv=qv,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        cache_seqlens=cache_seqlens,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
        page_table=page_table,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k_new=cu_seqlens_k_new,
        max_seqlen_q=max_seqlen_q,
        rotary_seqlens=rotary_seqlens,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        rotary_interleaved=rotary_interleaved,
        scheduler_metadata=scheduler_metadata,
        num_splits=num_splits,
        pack_gqa=pack_gqa,
        sm_margin=sm_margin,
        return_softmax_lse=return_softmax_lse,
    )


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Plan:
    """Plans a step once for every layer; the result is `flash_attn_with_kvcache`'s `scheduler_metadata`.

    Args:
        cache_seqlens: int32 [B], lengths without the new tokens, of which there are `max_seqlen_k_new` a sequence, or
            as many as `cu_seqlens_k_new` says.
        page_size: of a paged cache; None is a dense one of `max_seqlen_k` slots.
        cache_leftpad: int32 [B]; a dense cache with it is planned in pages of one slot.

    Returns:
        A `chunkattn.Plan`. It holds for calls with the same lengths, heads, mask and splits, which are compared there.
    """
    refuse_unless("get_scheduler_metadata", attention_chunk=(attention_chunk, 0), sm_margin=(sm_margin, 0))
    if cu_seqlens_q is None:
        cu_seqlens_q = torch.arange(batch_size + 1, dtype=torch.int32, device=cache_seqlens.device) * max_seqlen_q
    new = max_seqlen_k_new if cu_seqlens_k_new is None else torch.diff(cu_seqlens_k_new)
    pad = 0 if cache_leftpad is None else cache_leftpad
    return chunkattn.plan(
        cu_seqlens_q.to(torch.int32),
        (cache_seqlens + new - pad).to(torch.int32),
        num_q_heads=num_heads_q,
        num_kv_heads=num_heads_kv,
        head_dim=headdim + -headdim % 8,
        head_dim_v=None if headdim_v is None else headdim_v + -headdim_v % 8,
        page_size=page_size or (max_seqlen_k if cache_leftpad is None else 1),
        dtype=qkv_dtype,
        causal=causal,
        window=window_of(window_size),
        num_splits=num_splits if num_splits > 0 else None,
    )

"""FlashAttention 3's functions, ``from flash_attn_interface import …``: its names and its positional order.

The work and the rules are those of `chunkattn.compat.flash_attn`. As in FlashAttention 3, `return_attn_probs` of the
packed function returns (out, lse).
"""

from __future__ import annotations

import torch
from torch import Tensor

import chunkattn
from chunkattn.compat import flash_attn
from chunkattn.compat.flash_attn.call import Window, window_of
from chunkattn.compat.head_dim import check_head_dims, padded_dim
from chunkattn.compat.refusals import foreign_names, refuse_unless
from chunkattn.compat.scheduler_metadata import SchedulerMetadata
from chunkattn.compat.tensor_arguments import check_optional_tensors, check_per_sequence, check_tensors

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
    given = locals()  # every argument, so that none can be left out
    return flash_attn.flash_attn_varlen_func(return_softmax_lse=given.pop("return_attn_probs"), **given)


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
    scheduler_metadata: SchedulerMetadata | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Result:
    """As `chunkattn.compat.flash_attn.flash_attn_with_kvcache`."""
    return flash_attn.flash_attn_with_kvcache(**locals())


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
) -> SchedulerMetadata:
    """Plans a step once for every layer; the result is `flash_attn_with_kvcache`'s `scheduler_metadata`.

    Args:
        cache_seqlens: int32 [B], lengths without the new tokens, of which there are `max_seqlen_k_new` a sequence, or
            as many as `cu_seqlens_k_new` says.
        page_size: of a paged cache; None is a dense one of `max_seqlen_k` slots.
        cache_leftpad: int32 [B]; a cache with it is planned in pages of one slot.

    Returns:
        A `chunkattn.Plan` and what it was made for. It holds for calls with the same lengths, heads, mask and splits,
        which are compared there.
    """
    refuse_unless("get_scheduler_metadata", attention_chunk=(attention_chunk, 0), sm_margin=(sm_margin, 0))
    check_head_dims(headdim=headdim, headdim_v=headdim if headdim_v is None else headdim_v)
    check_tensors(cache_seqlens=(cache_seqlens, "[B]"))
    check_optional_tensors(
        cu_seqlens_q=(cu_seqlens_q, "[B+1]"),
        cu_seqlens_k_new=(cu_seqlens_k_new, "[B+1]"),
        cache_leftpad=(cache_leftpad, "[B]"),
    )
    check_per_sequence(batch_size, cache_seqlens=cache_seqlens, cache_leftpad=cache_leftpad)
    if cu_seqlens_q is None:
        cu_seqlens_q = torch.arange(batch_size + 1, dtype=torch.int32, device=cache_seqlens.device) * max_seqlen_q
    new = max_seqlen_k_new if cu_seqlens_k_new is None else torch.diff(cu_seqlens_k_new)
    pad = 0 if cache_leftpad is None else cache_leftpad
    if cache_leftpad is not None:
        page_size = 1
    starts, lengths = cu_seqlens_q.to(torch.int32, copy=True), (cache_seqlens + new - pad).to(torch.int32)
    window, splits = window_of(window_size), num_splits if num_splits > 0 else None
    with foreign_names(
        seq_lens="cache_seqlens",
        num_q_heads="num_heads_q",
        num_kv_heads="num_heads_kv",
        head_dim="headdim",
        head_dim_v="headdim_v",
        dtype="qkv_dtype",
        window="window_size",
        page_size="page_size" if page_size else "max_seqlen_k",
    ):
        plan = chunkattn.plan(
            starts,
            lengths,
            num_q_heads=num_heads_q,
            num_kv_heads=num_heads_kv,
            head_dim=padded_dim(headdim),
            head_dim_v=None if headdim_v is None else padded_dim(headdim_v),
            page_size=page_size or max_seqlen_k,
            dtype=qkv_dtype,
            causal=causal,
            window=window,
            num_splits=splits,
        )
    return SchedulerMetadata(
        **vars(plan), causal=bool(causal), window=window, num_splits=splits, cu_seqlens_q=starts, seq_lens=lengths
    )

"""The attention function that transformers calls in every layer."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from transformers.generation.continuous_batching.cache import PagedAttentionCache

import chunkattn
from chunkattn.compat.contiguous_kv import PagedView, packed_segments
from chunkattn.compat.refusals import foreign_names, refuse_unless
from chunkattn.errors import UnsupportedError

_FUNCTION = "attention for transformers"
_NAMES = {"q": "query", "k_cache": "key", "v_cache": "value", "window": "sliding_window", "sinks": "s_aux"}


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    cache: PagedAttentionCache | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer.

    Args:
        module: the layer.
        query: [B, Hq, T, D].
        key, value: [B, Hkv, S, D], history included; with a paged cache only the step's, of a batch of 1.
        attention_mask: from `key_spans`.
        scaling: factor of q·k; None is ``D ** -0.5``.
        sliding_window: tokens a query sees, itself included.
        softcap: None or 0 = off.
        is_causal: None asks the layer.
        s_aux: [Hq] sinks.
        dropout, position_bias, output_attentions: only at their defaults.
        cache: the paged cache of continuous batching. Its full-attention layers are read in place, through the step's
            own index of slots; sliding ones are gathered first, as transformers does.
        kwargs: of the paged cache: cu_seq_lens_q, cu_seq_lens_k, max_length_k, read_index, write_index; refused
            without it. What else models pass on, as position_ids, says nothing about attention.

    Returns:
        ([B, T, Hq, Dv], None).

    Raises:
        UnsupportedError: an argument that can't be honoured, by name.
    """
    refuse_unless(
        _FUNCTION,
        dropout=(dropout, 0.0),
        position_bias=(position_bias, None),
        output_attentions=(output_attentions, False),
        block_table=(kwargs.get("block_table"), None),
    )
    if cache is None:  # packed sequences come with a paged cache
        refuse_unless(_FUNCTION, **{name: (kwargs.get(name), None) for name in ("cu_seq_lens_q", "cu_seq_lens_k")})
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    left = -1 if sliding_window is None else sliding_window - 1
    options = {
        "softmax_scale": scaling,
        "causal": causal,
        # Without causality a window counts to both sides, as transformers' bidirectional windows do.
        "window": (left, -1 if causal else left),
        "softcap": softcap or 0.0,
        "sinks": None if s_aux is None else s_aux.float(),
    }
    batch_size, _, q_length, _ = query.shape
    q = query.transpose(1, 2).flatten(0, 1)  # a copy where B > 1
    if isinstance(cache, PagedAttentionCache):
        view, cu_seqlens_q, seq_lens = _paged(module, key, value, cache, kwargs)
    else:
        spans = None if attention_mask is None else _checked(attention_mask, batch_size, left, key.shape[2])
        view, cu_seqlens_q, seq_lens = _dense(key, value, q_length, spans)
    with foreign_names(**_NAMES):
        out = chunkattn.attention(q, *view, cu_seqlens_q, seq_lens, **options)  # type: ignore[arg-type]
    assert isinstance(out, Tensor)  # return_lse is not set
    return out.unflatten(0, (batch_size, q_length)), None


def _dense(key: Tensor, value: Tensor, q_length: int, spans: Tensor | None) -> tuple[PagedView, Tensor, Tensor]:
    """A batch of cache rows, seen as a pool without a copy."""
    batch_size, heads, slots, _ = key.shape
    if spans is None:
        table, cu_seqlens_q, seq_lens = _rows(batch_size, q_length, slots, key.device)
        return PagedView(key.transpose(1, 2), value.transpose(1, 2), table), cu_seqlens_q, seq_lens
    begin, end = spans.to(key.device).unbind(1)
    _, cu_seqlens_q, _ = _rows(batch_size, q_length, slots, key.device)
    # Pages of one slot, so that every row can begin at its own: page i begins i slots into the storage.
    pools = []
    for cache in (key, value):
        cache = cache.contiguous()  # as caches are
        pages = cache.numel() // cache.shape[3] - (heads - 1) * slots
        pools.append(cache.as_strided((pages, 1, heads, cache.shape[3]), (cache.shape[3], 1, cache.stride(1), 1)))
    row = torch.arange(batch_size, device=key.device, dtype=torch.int32) * (heads * slots) + begin
    table = row[:, None] + torch.arange(slots, device=key.device, dtype=torch.int32)
    return PagedView(pools[0], pools[1], table), cu_seqlens_q, (end - begin).contiguous()


def _checked(spans: Tensor, batch_size: int, left: int, slots: int) -> Tensor | None:
    """int32 [B, 2], begin and end of each row's keys, from what `key_spans` made; None where all slots are valid."""
    if spans.dtype != torch.int32 or spans.shape[1:] != (1, 1, 3):
        raise UnsupportedError(
            f"attention_mask: expected None or 2 dimensions [B, positions], got {spans.dtype} of {list(spans.shape)}"
        )
    begin, end, seen_from = spans.view(-1, 3).expand(batch_size, 3).unbind(1)
    expected = (end - 1 - left).clamp(min=0) if left >= 0 else torch.zeros_like(end)
    if not torch.equal(seen_from, expected):
        raise UnsupportedError(
            f"mask_function: expected a causal mask with the layer's own window (last queries see keys from slots "
            f"{expected.tolist()} on), got one that shows them from {seen_from.tolist()} on"
        )
    if not bool(begin.any()) and bool((end == slots).all()):
        return None
    return torch.stack([begin, end], dim=1)


@functools.lru_cache(maxsize=16)
def _rows(batch_size: int, q_length: int, slots: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Table, cu_seqlens_q and seq_lens of full rows; every layer of a step asks for the same."""
    rows = torch.arange(batch_size + 1, dtype=torch.int32, device=device)
    return rows[:-1, None], rows * q_length, torch.full((batch_size,), slots, dtype=torch.int32, device=device)


def _paged(
    module: torch.nn.Module, key: Tensor, value: Tensor, cache: PagedAttentionCache, kwargs: dict[str, Any]
) -> tuple[PagedView, Tensor, Tensor]:
    layer: int = module.layer_idx  # type: ignore[assignment]
    allocator = cache.layer_to_allocator[layer]
    cu_seqlens_q = kwargs["cu_seq_lens_q"].to(torch.int32)
    ends = kwargs["cu_seq_lens_k"][allocator.layer_type].to(torch.int32)
    longest = int(kwargs["max_length_k"][allocator.layer_type])
    read_index = kwargs["read_index"][allocator.index]
    if read_index.numel() == 0 or not allocator.supports_block_table:
        # New prompts only, or a window's ring of slots.
        k, v = cache.update(key_states=key, value_states=value, layer_idx=layer, kwargs=kwargs)
        packed = packed_segments(k[0].transpose(0, 1), v[0].transpose(0, 1), ends, longest)
        return packed, cu_seqlens_q, torch.diff(ends)
    k_pages, v_pages = allocator.get_cache_for_block_table(layer)
    k_slots, v_slots = k_pages.flatten(0, 1), v_pages.flatten(0, 1)
    write_index = kwargs["write_index"][allocator.index]
    k_slots.index_copy_(0, write_index, key[0].transpose(0, 1))
    v_slots.index_copy_(0, write_index, value[0].transpose(0, 1))
    where = ends[:-1, None].long() + torch.arange(longest, device=ends.device)
    table = read_index[where.clamp(max=read_index.shape[0] - 1)].to(torch.int32)
    return PagedView(k_slots.unsqueeze(1), v_slots.unsqueeze(1), table), cu_seqlens_q, torch.diff(ends)

"""A layer's attention in vLLM, over `chunkattn.append_kv`, `chunkattn.plan` and `chunkattn.attention`."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from vllm import envs
from vllm.v1.attention.backend import AttentionImpl, AttentionType

import chunkattn
from chunkattn.compat.vllm.cache_dtypes import QUANTISED
from chunkattn.compat.vllm.metadata import ChunkAttentionMetadata
from chunkattn.types import Plan


class ChunkAttentionImpl(AttentionImpl[ChunkAttentionMetadata]):  # type: ignore[misc]
    """One layer's attention."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """Keeps the layer's options.

        Args:
            scale: factor of q·k.
            alibi_slopes: one a head; the bias is slope·(key position - query position).
            sliding_window: tokens a query sees, itself included.
            kv_sharing_target_layer_name: the layer whose cache this one reads; vLLM then appends nothing for it.
            sinks: [num_heads] logits in the softmax denominator.

        Raises:
            UnsupportedError: attention of an encoder.
        """
        if attn_type != AttentionType.DECODER:
            raise chunkattn.UnsupportedError(
                f"attn_type: expected 'decoder' in chunkattn's vLLM backend, got {attn_type!r}"
            )
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self._slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self._window = (-1 if sliding_window is None else sliding_window - 1, -1)
        self._softcap = float(logits_soft_cap or 0.0)
        self._sinks = sinks
        self._quantised = QUANTISED.get(kv_cache_dtype)
        self._cache: Tensor | None = None
        self._views: tuple[Tensor, Tensor] | None = None
        self._invariant = bool(envs.VLLM_BATCH_INVARIANT)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: ChunkAttentionMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Attention of one layer; keys and values are in the cache already (`do_kv_cache_update`).

        Args:
            layer: holds the scales of a quantised cache.
            query: [T, Hq, D], padding included.
            kv_cache: [N, Hkv, P, 2·D], K and V of a token side by side; any strides.
            attn_metadata: None while vLLM warms up.
            output: [T, Hq, D] or [T, Hq·D]; written.

        Raises:
            UnsupportedError: quantised output.
        """
        for name, given in (("output_scale", output_scale), ("output_block_scale", output_block_scale)):
            if given is not None:
                raise chunkattn.UnsupportedError(f"{name}: expected None in chunkattn's vLLM backend, got a tensor")
        if attn_metadata is None:
            return output
        tokens = attn_metadata.num_actual_tokens
        q, out = query[:tokens], output.view(-1, self.num_heads, self.head_size)[:tokens]
        k_cache, v_cache = self._pool(kv_cache)
        k_scale, v_scale = self._scales(layer)
        chunkattn.attention(
            q,
            k_cache,
            v_cache,
            attn_metadata.block_table,
            attn_metadata.cu_seqlens_q,
            attn_metadata.seq_lens,
            softmax_scale=self.scale,
            causal=attn_metadata.causal,
            window=self._window,
            softcap=self._softcap,
            alibi_slopes=self._on(q, self._slopes),
            sinks=self._on(q, self._sinks),
            k_scale=k_scale,
            v_scale=v_scale,
            invariant=self._invariant,
            plan=self._plan(attn_metadata, q, k_cache),
            out=out,
        )
        return output

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Writes a step's keys and values.

        Args:
            key, value: [T, Hkv, D]; rows past those of `slot_mapping` are padding.
            slot_mapping: int64 [T], ``page * P + slot``, negative = skip.
        """
        k_cache, v_cache = self._pool(kv_cache)
        k_scale, v_scale = self._scales(layer)
        tokens = key.shape[0]
        table, ends = _one_request(tokens, k_cache.shape[1], key.device)
        chunkattn.append_kv(
            key.view(tokens, self.num_kv_heads, self.head_size),
            value.view(tokens, self.num_kv_heads, self.head_size),
            k_cache,
            v_cache,
            table,
            ends,
            ends[1:],
            slot_mapping=slot_mapping,
            k_scale=k_scale,
            v_scale=v_scale,
        )

    def _pool(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """[N, P, Hkv, D] views of K and V, made once for a cache."""
        if self._cache is kv_cache and self._views is not None:
            return self._views
        self._cache = kv_cache
        if self._quantised is not None and kv_cache.dtype != self._quantised:
            kv_cache = kv_cache.view(self._quantised)
        k_cache, v_cache = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        self._views = k_cache, v_cache
        return self._views

    def _scales(self, layer: Any) -> tuple[Tensor | None, Tensor | None]:
        if self._quantised is None:
            return None, None
        return tuple(s.reshape(()) if s.numel() == 1 else s for s in (layer._k_scale, layer._v_scale))  # type: ignore[return-value]

    def _on(self, q: Tensor, values: Tensor | None) -> Tensor | None:
        return None if values is None else values.to(q.device, torch.float32)

    def _plan(self, metadata: ChunkAttentionMetadata, q: Tensor, k_cache: Tensor) -> Plan:
        layout = "HND" if k_cache.stride(2) > k_cache.stride(1) else "NHD"
        facts = (self.num_heads, self.num_kv_heads, self.head_size, k_cache.shape[1], q.dtype, self._window, layout)
        if facts not in metadata.plans:
            metadata.plans[facts] = chunkattn.plan(
                metadata.cu_seqlens_q,
                metadata.seq_lens,
                num_q_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_size,
                page_size=k_cache.shape[1],
                dtype=q.dtype,
                causal=metadata.causal,
                window=self._window,
                invariant=self._invariant,
                layout=layout,
            )
        return metadata.plans[facts]


@functools.lru_cache(maxsize=64)
def _one_request(tokens: int, page_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Page table and cu_seqlens_q of one request that stands for a step's: where slots are given they say it all."""
    ends = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    return ends.new_zeros(1, -(-tokens // page_size)), ends

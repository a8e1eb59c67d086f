"""A Llama-family decoder over a paged KV cache; its attention is `chunkattn.append_kv` and `chunkattn.attention`.

One forward pass serves one step of a continuous-batching engine: prompt chunks and decodes side by side in one
ragged batch. The pass is the same for both; nothing asks which request is in which phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import chunkattn
from chunkattn.models.config import ModelConfig
from chunkattn.models.rope import rope_tables
from chunkattn.models.weights import DecoderWeights, LayerWeights
from chunkattn.types import AttentionSpec, Batch, PagedKV, Plan, Rope


class _Step(NamedTuple):
    """What every layer of a step shares."""

    batch: Batch
    rope: Rope
    tree_mask: Tensor | None
    workspace: Tensor | None


class Decoder:
    """Computes logits of a step and writes its keys and values into the cache.

    Attributes:
        config: sizes and variants.
        weights: the parameters; their dtype and device are the decoder's.
        max_seq_len: positions the RoPE tables cover.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        *,
        max_seq_len: int | None = None,
        backend: str | None = None,
    ) -> None:
        """Prepares the RoPE tables.

        Args:
            config: sizes and variants.
            weights: from `gather_weights`.
            max_seq_len: positions to make tables for; ``config.max_positions`` by default.
            backend: the attention backend; None lets chunkattn choose.
        """
        self.config = config
        self.weights = weights
        self.max_seq_len = max_seq_len or config.max_positions
        self.backend = backend
        cos, sin = rope_tables(config.rope, self.max_seq_len, weights.embedding.device)
        self._rope = Rope(cos, sin, interleaved=config.rope.interleaved)

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.weights.embedding.device

    def problem(self, page_size: int) -> AttentionSpec:
        """The facts of its layers' attention over a cache with pages of this size."""
        config = self.config
        return AttentionSpec(
            self.device.type,
            self.dtype,
            self.dtype,
            config.num_q_heads,
            config.num_kv_heads,
            config.head_dim,
            config.head_dim,
            page_size,
            window=any(window is not None for window in config.windows),
        )

    def allocate_cache(self, num_pages: int, page_size: int) -> list[PagedKV]:
        """An empty paged cache, one pool per layer, of the decoder's dtype.

        Raises:
            ValueError: no attention backend has the decoder's name for one; numbers that no cache can have.
            UnsupportedError: no backend, or not the decoder's, serves a model of these sizes with such pages.
        """
        support = chunkattn.supports(self.problem(page_size), backend=self.backend)
        if not support:
            raise chunkattn.UnsupportedError("; ".join(support.reasons))
        return [
            PagedKV.allocate(
                num_pages,
                page_size,
                self.config.num_kv_heads,
                self.config.head_dim,
                dtype=self.dtype,
                device=self.device,
            )
            for _ in range(self.config.num_layers)
        ]

    @torch.inference_mode()
    def forward(
        self,
        input_ids: Tensor,
        batch: Batch,
        cache: Sequence[PagedKV],
        logits_indices: Tensor,
        *,
        positions: Tensor | None = None,
        tree_mask: Tensor | None = None,
    ) -> Tensor:
        """Runs one step.

        Args:
            input_ids: [T] int64, the new tokens, requests one after another.
            batch: lengths and page tables of the requests.
            cache: one `PagedKV` per layer; the new tokens' keys and values are written into it.
            logits_indices: [n] int64, the rows of ``input_ids`` whose next-token logits are wanted.
            positions: [T] int64, where tokens do not follow one another: guesses that branch.
            tree_mask: int32 [T, words], which of its request's new tokens a row sees; as in `chunkattn.attention`.

        Returns:
            [n, vocab_size] fp32 logits.

        Raises:
            ValueError: a tree on a model with a sliding window, which counts by slot and not along a branch.
        """
        if tree_mask is not None and any(window is not None for window in self.config.windows):
            raise ValueError("tree_mask: expected a model without sliding windows")
        weights, config = self.weights, self.config
        # Lengths are the same in every layer, so the step is planned once for each kind of window.
        plans = {window: self._plan(len(input_ids), batch, cache[0], window) for window in set(config.windows)}
        size = max(plan.workspace_bytes for plan in plans.values())
        workspace = torch.empty(size, dtype=torch.uint8, device=self.device) if size else None
        rope = self._rope if positions is None else replace(self._rope, positions=positions)
        step = _Step(batch, rope, tree_mask, workspace)
        hidden = F.embedding(input_ids, weights.embedding)
        for layer, pool, window in zip(weights.layers, cache, config.windows, strict=True):
            normed = _rms_norm(hidden, layer.attention_norm, config.rms_norm_eps)
            hidden = hidden + self._attention(normed, layer, pool, step, plans[window], window)
            hidden = hidden + _mlp(_rms_norm(hidden, layer.mlp_norm, config.rms_norm_eps), layer)
        # Only rows somebody samples from: the vocabulary product of a whole prompt would dwarf everything else.
        last = _rms_norm(hidden[logits_indices], weights.final_norm, config.rms_norm_eps)
        return F.linear(last, weights.logits).float()

    def _plan(self, num_tokens: int, batch: Batch, pool: PagedKV, window: int | None) -> Plan:
        page_size = pool.k_cache.shape[1]
        return chunkattn.plan(
            batch.cu_seqlens_q,
            batch.seq_lens,
            num_q_heads=self.config.num_q_heads,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            page_size=page_size,
            dtype=self.dtype,
            window=_beside(window),
            # From the shapes: the lengths themselves are on the device.
            max_tokens=num_tokens,
            max_seq_len=batch.block_table.shape[1] * page_size,
            backend=self.backend,
        )

    def _attention(
        self,
        hidden: Tensor,
        layer: LayerWeights,
        pool: PagedKV,
        step: _Step,
        plan: Plan,
        window: int | None,
    ) -> Tensor:
        config, batch = self.config, step.batch
        q, k, v = self._project(hidden, layer)
        # Writes K (rotated) and V into their pages, and rotates q in place.
        chunkattn.append_kv(
            k,
            v,
            pool.k_cache,
            pool.v_cache,
            batch.block_table,
            batch.cu_seqlens_q,
            batch.seq_lens,
            rope=step.rope,
            q=q,
            backend=self.backend,
        )
        out = q.new_empty(q.shape)
        chunkattn.attention(
            q,
            pool.k_cache,
            pool.v_cache,
            batch.block_table,
            batch.cu_seqlens_q,
            batch.seq_lens,
            window=_beside(window),
            tree_mask=step.tree_mask,
            out=out,
            plan=plan,
            workspace=step.workspace,
            backend=self.backend,
        )
        return F.linear(out.reshape(-1, config.num_q_heads * config.head_dim), layer.output, layer.output_bias)

    def _project(self, hidden: Tensor, layer: LayerWeights) -> tuple[Tensor, Tensor, Tensor]:
        """q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]; views of one product unless q and k are normalised."""
        config = self.config
        heads = F.linear(hidden, layer.qkv, layer.qkv_bias).view(hidden.shape[0], -1, config.head_dim)
        q, k, v = heads.split((config.num_q_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = _rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = _rms_norm(k, layer.k_norm, config.rms_norm_eps)
        return q, k, v


def _beside(window: int | None) -> tuple[int, int]:
    """A model's window counts the token itself; the operators count the keys beside it."""
    return (-1, -1) if window is None else (window - 1, -1)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def _mlp(x: Tensor, layer: LayerWeights) -> Tensor:
    gate, up = F.linear(x, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
    return F.linear(F.silu(gate).mul_(up), layer.down, layer.down_bias)

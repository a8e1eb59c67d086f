"""A step that was planned from CSR tables, and how a layer runs it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import chunkattn
from chunkattn import validate
from chunkattn.compat.flashinfer.pools import PagedKVCache, unpack
from chunkattn.compat.flashinfer.rope_llama import RopeLlama
from chunkattn.compat.refusals import foreign_names, refuse
from chunkattn.compat.tensor_arguments import check_tensors
from chunkattn.types import KV_DTYPES_QUANTISED, Batch, Plan

LN2 = math.log(2.0)
Scale = float | Tensor
_OPTIONS = {
    "num_q_heads": "num_qo_heads",
    "dtype": "q_data_type",
    "window": "window_left",
    "softcap": "logits_soft_cap",
    "k_cache": "paged_kv_cache",
    "v_cache": "paged_kv_cache",
}


@dataclass(frozen=True)
class Mask:
    """What the plan fixes about scores.

    Attributes:
        causal, window_left, softcap, tree: as in `chunkattn.attention`.
        slopes: fp32 [Hq] of FlashInfer's ALiBi, whose distances count from a request's first query token.
        softmax_scale: None is ``D ** -0.5``.
        invariant, num_splits: how the keys are split.
        rope: rotates queries and keys at every read.
    """

    causal: bool
    window_left: int = -1
    softcap: float = 0.0
    tree: Tensor | None = None
    slopes: Tensor | None = None
    softmax_scale: float | None = None
    invariant: bool = False
    num_splits: int | None = None
    rope: RopeLlama | None = None


@dataclass(frozen=True)
class Shape:
    """What the plan fixes about tensors."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    page_size: int
    kv_layout: str
    q_dtype: torch.dtype
    kv_dtype: torch.dtype
    out_dtype: torch.dtype


@dataclass(frozen=True)
class Scales:
    """Factors of a run; numbers or tensors of one number, `v` and `k` also [Hkv] for a quantised pool."""

    q: Scale | None = None
    k: Scale | None = None
    v: Scale | None = None


class PlannedStep:
    """Lengths, page table and options of a step.

    Attributes:
        batch: the step's tensors.
        num_tokens: rows of q.
    """

    def __init__(
        self, batch: Batch, shape: Shape, mask: Mask, workspace: Tensor | None, names: dict[str, str | None]
    ) -> None:
        """Plans the step; a workspace is used where it is large enough, and errors blame the arguments of `names`."""
        self.batch, self.num_tokens = batch, int(batch.cu_seqlens_q[-1])
        self._shape, self._mask, self._names = shape, mask, {**_OPTIONS, **names}
        self._plan = self._planned(mask.window_left)
        words = None if workspace is None else workspace.flatten().view(torch.uint8)
        self._workspace = words if words is not None and words.shape[0] >= self._plan.workspace_bytes else None

    def _planned(self, window_left: int) -> Plan:
        shape, mask = self._shape, self._mask
        with foreign_names(**self._names):
            return chunkattn.plan(
                self.batch.cu_seqlens_q,
                self.batch.seq_lens,
                num_q_heads=shape.num_q_heads,
                num_kv_heads=shape.num_kv_heads,
                head_dim=shape.head_dim,
                head_dim_v=shape.head_dim_v,
                page_size=shape.page_size if mask.rope is None else 1,
                dtype=shape.q_dtype,
                causal=mask.causal,
                window=(window_left, -1),
                invariant=mask.invariant,
                num_splits=mask.num_splits,
                layout=shape.kv_layout if mask.rope is None else "NHD",
            )

    def run(
        self,
        name: str,
        q: Tensor,
        paged_kv_cache: PagedKVCache,
        *,
        scales: Scales,
        out: Tensor | None,
        lse: Tensor | None,
        return_lse: bool,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        softcap: float | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of one layer.

        Args:
            name: the foreign function, for messages.
            q: [nnz, Hq, D].
            window_left: replaces the planned one.
            softcap: replaces the planned one.

        Returns:
            out [nnz, Hq, Dv], and lse [nnz, Hq], base 2, if asked for.
        """
        shape, mask = self._shape, self._mask
        k_cache, v_cache = unpack(paged_kv_cache, shape.kv_layout)
        self._check(q, k_cache, v_cache)
        batch = self.batch
        if mask.rope is not None:
            q, k_cache, v_cache, batch = mask.rope.apply(q, k_cache, v_cache, batch)
        left = mask.window_left if window_left is None else window_left
        factor = _number(name, "q_scale", scales.q)
        k_scale, k_factor = _pool_scale(name, "k_scale", scales.k, k_cache)
        v_scale, v_factor = _pool_scale(name, "v_scale", scales.v, v_cache)
        native_out = out if out is not None and out.dtype == q.dtype and v_factor == 1.0 else None
        natural = lse
        if natural is None and return_lse:
            natural = torch.empty(q.shape[0], q.shape[1], dtype=torch.float32, device=q.device)
        scale = validate.softmax_scale(mask.softmax_scale, q.shape[-1])
        with foreign_names(**self._names):
            result = chunkattn.attention(
                q,
                k_cache,
                v_cache,
                batch.block_table,
                batch.cu_seqlens_q,
                batch.seq_lens,
                softmax_scale=scale * factor * k_factor,
                causal=mask.causal,
                window=(left, -1),
                softcap=mask.softcap if softcap is None else softcap,
                alibi_slopes=mask.slopes,
                sinks=None if sinks is None else sinks.float(),
                tree_mask=mask.tree,
                k_scale=k_scale,
                v_scale=v_scale,
                invariant=mask.invariant,
                num_splits=mask.num_splits,
                plan=self._plan if left == mask.window_left else self._planned(left),
                workspace=self._workspace if left == mask.window_left else None,
                out=native_out,
                lse=natural,
            )
        assert isinstance(result, Tensor)  # return_lse is not set
        if v_factor != 1.0:
            result = result * v_factor
        if out is not None and native_out is None:
            result = out.copy_(result)
        elif out is None:
            result = result.to(shape.out_dtype)
        if natural is not None:
            if mask.slopes is not None:
                # Their ALiBi counts from the request's first query: every score of a row is higher by this much.
                history = self.batch.seq_lens - torch.diff(self.batch.cu_seqlens_q)
                rows = torch.repeat_interleave(history, torch.diff(self.batch.cu_seqlens_q))
                natural += rows[:, None] * mask.slopes
            natural /= LN2
        return result, natural

    def _check(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        shape = self._shape
        check_tensors(q=(q, "[nnz, Hq, D]"))
        if q.dtype != shape.q_dtype:
            raise ValueError(f"q: expected {shape.q_dtype}, as planned, got {q.dtype}")
        if k_cache.dtype != shape.kv_dtype:
            raise ValueError(f"paged_kv_cache: expected {shape.kv_dtype}, as planned, got {k_cache.dtype}")
        if q.shape[0] != self.num_tokens:
            raise ValueError(f"q: expected {self.num_tokens} tokens, as planned, got {q.shape[0]}")
        if k_cache.shape[1] != shape.page_size:
            raise ValueError(f"paged_kv_cache: expected pages of {shape.page_size}, as planned, got {k_cache.shape[1]}")
        for argument, what, tensor, head_dim in (
            ("q", "head dim", q, shape.head_dim),
            ("paged_kv_cache", "keys of head dim", k_cache, shape.head_dim),
            ("paged_kv_cache", "values of head dim", v_cache, shape.head_dim_v),
        ):
            if tensor.shape[-1] != head_dim:
                raise ValueError(f"{argument}: expected {what} {head_dim}, as planned, got {tensor.shape[-1]}")


def _number(name: str, argument: str, scale: Scale | None) -> float:
    if scale is None:
        return 1.0
    if isinstance(scale, Tensor) and scale.numel() != 1:
        raise refuse(name, argument, f"expected one number, got a tensor of shape {list(scale.shape)}")
    return float(scale)


def _pool_scale(name: str, argument: str, scale: Scale | None, pool: Tensor) -> tuple[Tensor | None, float]:
    """The scale as the operator's argument where the pool is quantised, else as a factor."""
    if scale is None:
        return None, 1.0
    if pool.dtype not in KV_DTYPES_QUANTISED:
        return None, _number(name, argument, scale)
    if isinstance(scale, Tensor) and scale.numel() > 1:
        return scale.float().flatten(), 1.0
    return torch.tensor(float(scale), dtype=torch.float32, device=pool.device), 1.0

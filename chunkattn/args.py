"""The arguments of each torch op, named, in the order of its schema (`chunkattn.ops`).

An op's implementation receives positional arguments; naming them once here lets validation, the choice of a backend and
the backends share one object. Shapes are those of the public functions in `chunkattn.api`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from chunkattn.types import AttentionSpec


class AttentionArgs(NamedTuple):
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    out: Tensor
    lse: Tensor | None
    alibi_slopes: Tensor | None
    sinks: Tensor | None
    tree_mask: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    plan: Tensor | None
    workspace: Tensor | None
    softmax_scale: float
    causal: bool
    window_left: int
    window_right: int
    softcap: float
    invariant: bool
    num_splits: int  # 0 = planned
    backend: str | None


class AppendArgs(NamedTuple):
    k: Tensor
    v: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    slot_mapping: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    q: Tensor | None
    rope_cos: Tensor | None
    rope_sin: Tensor | None
    rope_positions: Tensor | None
    rope_interleaved: bool
    backend: str | None


class MergeArgs(NamedTuple):
    out_a: Tensor
    lse_a: Tensor
    out_b: Tensor
    lse_b: Tensor
    out: Tensor
    lse: Tensor
    backend: str | None


class PlanArgs(NamedTuple):
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    words: Tensor
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    page_size: int
    dtype: torch.dtype
    causal: bool
    window_left: int
    window_right: int
    invariant: bool
    num_splits: int
    layout: str
    backend: str | None


def plan_args(a: AttentionArgs, words: Tensor) -> PlanArgs:
    """The plan that an attention call needs, to be written to `words`."""
    return PlanArgs(
        a.cu_seqlens_q,
        a.seq_lens,
        words,
        a.q.shape[1],
        a.k_cache.shape[2],
        a.q.shape[2],
        a.v_cache.shape[3],
        a.k_cache.shape[1],
        a.q.dtype,
        a.causal,
        a.window_left,
        a.window_right,
        a.invariant,
        a.num_splits,
        "NHD",
        None,
    )


def plan_spec(a: PlanArgs) -> AttentionSpec:
    """The facts of a plan call."""
    return AttentionSpec(
        a.seq_lens.device.type,
        a.dtype,
        a.dtype,
        a.num_q_heads,
        a.num_kv_heads,
        a.head_dim,
        a.head_dim_v,
        a.page_size,
        a.causal,
        a.window_left >= 0 or a.window_right >= 0,
        invariant=a.invariant,
        op="plan",
    )


def granularity(*scales: Tensor | None) -> str:
    """Of valid scales the finest: "none", "tensor", "head" or "token"."""
    dims = [scale.dim() for scale in scales if scale is not None]
    return {0: "tensor", 1: "head", 3: "token"}[max(dims)] if dims else "none"


def attention_spec(a: AttentionArgs, kv_scale: str | None = None) -> AttentionSpec:
    """The facts of an attention call. kv_scale: of its scales, where they are known already."""
    return AttentionSpec(
        a.q.device.type,
        a.q.dtype,
        a.k_cache.dtype,
        a.q.shape[1],
        a.k_cache.shape[2],
        a.q.shape[2],
        a.v_cache.shape[3],
        a.k_cache.shape[1],
        a.causal,
        a.window_left >= 0 or a.window_right >= 0,
        a.softcap > 0.0,
        a.alibi_slopes is not None,
        a.sinks is not None,
        a.tree_mask is not None,
        granularity(a.k_scale, a.v_scale) if kv_scale is None else kv_scale,
        a.invariant,
    )

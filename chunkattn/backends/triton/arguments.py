"""What the attention kernels are given, grouped: tensors with their strides, and what is compiled in.

A group is a named tuple that Triton passes through as one argument; `None` for a tensor that a call does not have is
compiled in as such. Strides are in elements. Shapes are those of `chunkattn.api`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """The ragged batch of a step."""

    cu_seqlens_q: Tensor  # [B + 1] int32
    seq_lens: Tensor  # [B] int32
    block_table: Tensor  # [B, M] int32
    table_stride_request: int
    table_stride_column: int


class Rows(NamedTuple):
    """q, out or lse: [T, Hq, …]."""

    ptr: Tensor | None
    stride_token: int
    stride_head: int


class Scale(NamedTuple):
    """Scale of a quantised pool: [] | [Hkv] | [N, P, Hkv] fp32, None without."""

    ptr: Tensor | None
    stride_page: int
    stride_slot: int
    stride_head: int


class Pool(NamedTuple):
    """One paged pool, K or V: [N, P, Hkv, D]."""

    ptr: Tensor  # fp8 as uint8
    stride_page: int
    stride_slot: int
    stride_head: int
    scale: Scale


class Extras(NamedTuple):
    """Tensors of the optional terms."""

    alibi_slopes: Tensor | None  # [Hq] or [B, Hq] fp32
    alibi_stride_request: int  # 0 for [Hq]
    alibi_stride_head: int
    sinks: Tensor | None  # [Hq] fp32
    sinks_stride: int
    tree_mask: Tensor | None  # [T, words] int32
    tree_stride_token: int


class Partials(NamedTuple):
    """Workspace of split items: `capacity` rows of unnormalised out, then their maxima, then their sums."""

    ptr: Tensor | None  # fp32
    capacity: int


class Spec(NamedTuple):
    """What is compiled in; every field is a `tl.constexpr`."""

    group: Any  # query heads of a KV head
    num_kv_heads: Any
    head_dim: Any
    head_dim_v: Any
    depth: Any  # head_dim padded to lanes of a tile
    width: Any  # head_dim_v likewise
    page_size: Any
    storage: Any  # how the pools store numbers: "same" | "e4m3" | "e5m2" | "int8"
    widen_once: Any  # whether warps share the work of widening what prefill tiles multiply with
    k_scale: Any  # "none" | "tensor" | "head" | "token"
    v_scale: Any
    fine_weights: Any  # whether weights go into the product with V as two numbers, rounded and what that took off
    has_wgmma: Any  # whether tensor cores are given registers by wgmma
    causal: Any
    has_left: Any
    has_right: Any
    has_softcap: Any
    has_alibi: Any
    has_sinks: Any
    has_tree: Any
    invariant: Any
    calls_items: Any  # whether an item is a function that is called
    check_plan: Any
    block_m: Any
    block_m_decode: Any
    block_n: Any
    num_stages: Any
    kv_tile: Any
    invariant_split: Any
    precision: Any  # of tl.dot: "tf32x3" for fp32, else "ieee" (no effect)


class Numbers(NamedTuple):
    """Scalars of a call."""

    softmax_scale: float
    softcap: float
    window_left: int
    window_right: int

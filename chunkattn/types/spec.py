"""The facts of a problem, and what they can be."""

from __future__ import annotations

from typing import NamedTuple

import torch

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
KV_DTYPES_QUANTISED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
MAX_HEAD_DIM = 256


class AttentionSpec(NamedTuple):
    """The facts of an attention problem that decide which backend can serve it; nothing that changes from step to
    step.

    A named tuple and not a dataclass because one is built and hashed on every call (0.5 µs instead of 4).
    """

    device: str
    dtype: torch.dtype
    kv_dtype: torch.dtype
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    page_size: int
    causal: bool = True
    window: bool = False
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    tree_mask: bool = False
    kv_scale: str = "none"  # none | tensor | head | token
    invariant: bool = False
    op: str = "attention"  # attention | plan | append_kv | merge_states | pages

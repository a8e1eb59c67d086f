"""The description of one attention problem, and named ragged batches worth trying.

A case holds facts only; :func:`chunkattn.testing.build` turns it into tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from chunkattn.testing.compare import row_budget

Layout = Literal["nhd", "hnd", "fused", "layers", "lanes"]
QLayout = Literal["contiguous", "fused_qkv", "head_major", "offset"]
ScaleMode = Literal["none", "tensor", "head", "token_head"]


@dataclass(frozen=True)
class AttentionCase:
    """One ragged batch over one paged pool, with every option of the operator.

    Attributes:
        name: shown in messages and test ids.
        q_lens: query tokens of each request in this step; 0 is legal.
        kv_lens: keys of each request including this step's; 0 is legal.
        num_q_heads: Hq, a multiple of ``num_kv_heads``.
        num_kv_heads: Hkv.
        head_dim: D of Q and K.
        head_dim_v: Dv of V; None = D.
        page_size: P, tokens of a page.
        dtype: of q and out.
        kv_dtype: of the pool; None = ``dtype``.
        scale_mode: how the pool's scales are indexed.
        layout: where the pool's views come from: ``nhd`` and ``hnd`` page layouts, ``fused`` [N, 2, P, H, D],
            ``layers`` (a layer of a cross-layer pool), ``lanes`` (a slice of a wider last dim).
        q_layout: ``contiguous``; ``fused_qkv``: a slice of a wider row; ``head_major``: [Hq, T, D] transposed;
            ``offset``: data starts one element into its storage.
        causal: bottom-right causal mask.
        window: (left, right) inclusive counts beside the query; -1 = unlimited.
        softcap: cap of the scores; 0 = off.
        softmax_scale: None = D^-0.5.
        alibi: slopes per ``head`` or per ``request`` and head.
        sinks: one sink logit per query head.
        tree: random packed tree mask over each request's new tokens.
        invariant: batch- and chunk-invariant mode.
        num_splits: KV splits; None = planned.
        padding: token rows past the last request.
        spare_columns: columns of the block table beyond the longest request, filled with garbage.
        spare_pages: pages of the pool that belong to nobody.
        seed: of all random numbers.
    """

    name: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    num_q_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    head_dim_v: int | None = None
    page_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype | None = None
    scale_mode: ScaleMode = "none"
    layout: Layout = "nhd"
    q_layout: QLayout = "contiguous"
    causal: bool = True
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    softmax_scale: float | None = None
    alibi: Literal["head", "request"] | None = None
    sinks: bool = False
    tree: bool = False
    invariant: bool = False
    num_splits: int | None = None
    padding: int = 0
    spare_columns: int = 3
    spare_pages: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.q_lens) != len(self.kv_lens):
            raise ValueError(f"kv_lens: expected {len(self.q_lens)} lengths like q_lens, got {len(self.kv_lens)}")
        if self.num_q_heads % self.num_kv_heads:
            raise ValueError(f"num_q_heads: expected a multiple of {self.num_kv_heads}, got {self.num_q_heads}")

    @property
    def value_dim(self) -> int:
        """Dv."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def cache_dtype(self) -> torch.dtype:
        """Dtype of the pool."""
        return self.dtype if self.kv_dtype is None else self.kv_dtype

    @property
    def num_tokens(self) -> int:
        """T, with padding rows."""
        return sum(self.q_lens) + self.padding

    @property
    def row_budget(self) -> float:
        """Largest row error of the case with its random contents: normal queries and keys."""
        scale = self.head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale
        return row_budget(self.dtype, abs(scale) * self.head_dim**0.5)

    def pages_of(self, request: int) -> int:
        """Pages that hold a request's keys."""
        return math.ceil(self.kv_lens[request] / self.page_size)

    def but(self, **changes: Any) -> AttentionCase:
        """The same case with some fields changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        return self.name


BATCHES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    # name: (q_lens, kv_lens)
    "one_token": ((1,), (1,)),
    "one_decode": ((1,), (131,)),
    "decodes": ((1, 1, 1, 1, 1), (1, 17, 64, 200, 530)),
    "whole_prompts": ((33, 64, 7), (33, 64, 7)),
    "chunks": ((37, 64, 3), (100, 192, 530)),
    "exact_tiles": ((64, 128), (128, 256)),
    "mixed": ((1, 33, 1, 5, 70), (129, 90, 16, 5, 303)),
    "mixed_with_empty": ((0, 1, 0, 17, 1, 0, 4), (0, 65, 33, 40, 0, 7, 600)),
    "speculative": ((4, 8, 5, 1), (68, 8, 517, 33)),
    "more_queries_than_keys": ((5, 9, 1, 40), (2, 0, 3, 17)),
    "long_and_short": ((1, 3, 17), (1100, 70, 17)),
    "no_tokens": ((0, 0), (12, 0)),
}
"""Ragged batches by name: empty requests, one-token requests, exact multiples of tiles, prefixes, mixes."""

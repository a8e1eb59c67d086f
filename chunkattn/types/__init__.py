"""The nouns of the library, and the shape glossary.

Shape letters, the same everywhere:

====== ==========================================================================
T      query tokens of one step, all requests one after another
B      requests of the step (some may bring no token)
Hq Hkv query heads, KV heads; Hq is a multiple of Hkv
D Dv   head dim of Q and K, head dim of V; multiples of 8 up to 256
N P    pages in the pool, tokens per page
M      columns of the block table
S      KV splits
====== ==========================================================================

Facts of a problem are frozen dataclasses, facts of a step are tensors, decisions are frozen dataclasses.
"""

from __future__ import annotations

from chunkattn.types.batch import Batch
from chunkattn.types.paged_kv import PagedKV
from chunkattn.types.plan import Plan
from chunkattn.types.rope import Rope
from chunkattn.types.spec import DTYPES, KV_DTYPES_QUANTISED, MAX_HEAD_DIM, AttentionSpec

__all__ = ["DTYPES", "KV_DTYPES_QUANTISED", "MAX_HEAD_DIM", "AttentionSpec", "Batch", "PagedKV", "Plan", "Rope"]

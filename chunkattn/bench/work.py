"""What a case has to do at least, and how long that takes at given rates: the floor under every time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chunkattn.bench.case import DTYPES, BenchCase
from chunkattn.testing import flops, kv_bytes, visible_pairs


@dataclass(frozen=True)
class Work:
    """Exact counts of one case.

    Attributes:
        flops: 2 for each multiply-add of QKᵀ and PV over the visible pairs.
        bytes: K and V once a request, Q and out once, the block table.
        kv_bytes: the part of `bytes` that is K and V.
        exps: exponentials, one for every visible pair and query head.
    """

    flops: int
    bytes: int
    kv_bytes: int
    exps: int


@dataclass(frozen=True)
class Floor:
    """Seconds a case needs at the machine's own rates.

    Attributes:
        compute_s: flops at the matmul rate.
        memory_s: bytes at the rate of a plain read of the same pages.
    """

    compute_s: float
    memory_s: float

    @property
    def overlap_s(self) -> float:
        """Perfect overlap of arithmetic and memory."""
        return max(self.compute_s, self.memory_s)

    @property
    def bound(self) -> str:
        """Which of the two is larger."""
        return "compute" if self.compute_s >= self.memory_s else "memory"


def count(case: BenchCase) -> Work:
    """Counts the work of a case.

    Example:
        >>> from chunkattn.bench.case import BenchCase
        >>> count(BenchCase("doc", "decode", ((1, 1, 2047),))).flops
        33554432
    """
    heads = case.heads
    q_lens, kv_lens = case.q_lens, case.kv_lens
    pairs = sum(visible_pairs(q, kv, window=heads.window) for q, kv in zip(q_lens, kv_lens, strict=True))
    cache = kv_bytes(
        q_lens,
        kv_lens,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        head_dim_v=heads.head_dim_v,
        element_size=DTYPES[case.kv_dtype].itemsize,
        window=heads.window,
    )
    rows = sum(q_lens) * heads.num_q_heads * (heads.head_dim + heads.head_dim_v) * DTYPES[case.dtype].itemsize
    table = 4 * sum(math.ceil(kv / case.page_size) for kv in kv_lens)
    return Work(
        flops=flops(
            q_lens,
            kv_lens,
            num_q_heads=heads.num_q_heads,
            head_dim=heads.head_dim,
            head_dim_v=heads.head_dim_v,
            window=heads.window,
        ),
        bytes=cache + rows + table,
        kv_bytes=cache,
        exps=pairs * heads.num_q_heads,
    )


def floor(work: Work, *, flops_per_s: float, bytes_per_s: float) -> Floor:
    """The floor at measured rates.

    Args:
        work: of the case.
        flops_per_s: matmul rate in the case's dtype, or in fp32 where that is faster.
        bytes_per_s: read rate.
    """
    return Floor(work.flops / flops_per_s, work.bytes / bytes_per_s)

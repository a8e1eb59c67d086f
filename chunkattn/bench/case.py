"""One benchmark problem: a ragged batch, the heads it is for, and how its cache is laid out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

import chunkattn
from chunkattn.testing import AttentionCase
from chunkattn.types.counts import check_counts

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}


@dataclass(frozen=True)
class Heads:
    """Attention of one kind of layer.

    Attributes:
        num_q_heads, num_kv_heads: query and KV heads on this device.
        head_dim, head_dim_v: D and Dv.
        window: inclusive counts beside the query, -1 = unlimited.
        sinks: one sink logit a query head.
        softcap: cap of the scores, 0 = off.
    """

    num_q_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    head_dim_v: int = 128
    window: tuple[int, int] = (-1, -1)
    sinks: bool = False
    softcap: float = 0.0


@dataclass(frozen=True)
class BenchCase:
    """A named problem.

    Attributes:
        suite: the list of cases it comes from.
        name: unique in its suite up to dtype and page size.
        requests: (count, q_len, history) groups in batch order; keys = history + q_len.
        heads: one layer.
        dtype: of q and out, a key of `DTYPES`.
        kv_dtype: of the cache, a key of `DTYPES`.
        page_size: tokens a page.
        layout: "nhd" or "hnd" pages.
        invariant: batch- and chunk-invariant mode.
        axes: values a chart is drawn over, e.g. {"chunk": 512, "history": 4096}.
        seed: of data and page order.
    """

    suite: str
    name: str
    requests: tuple[tuple[int, int, int], ...]
    heads: Heads = field(default_factory=Heads)
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    page_size: int = 16
    layout: str = "nhd"
    invariant: bool = False
    axes: tuple[tuple[str, float], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("dtype", self.dtype), ("kv_dtype", self.kv_dtype)):
            if value not in DTYPES:
                raise ValueError(f"{name}: expected one of {', '.join(DTYPES)}, got {value!r}")
        if self.layout not in ("nhd", "hnd"):
            raise ValueError(f"layout: expected 'nhd' or 'hnd', got {self.layout!r}")
        check_counts("page_size", (self.page_size,), least=1)
        for group in self.requests:
            if len(group) != 3 or not all(isinstance(number, int) and number >= 0 for number in group):
                raise ValueError(f"requests: expected [count, q_len, history] with numbers >= 0, got {list(group)}")
        if not any(self.kv_lens):
            raise ValueError(f"requests: expected at least one token in {self.name!r}, got none")

    @property
    def q_lens(self) -> tuple[int, ...]:
        """Query tokens of every request."""
        return tuple(q for count, q, _ in self.requests for _ in range(count))

    @property
    def kv_lens(self) -> tuple[int, ...]:
        """Keys of every request, this step's included."""
        return tuple(history + q for count, q, history in self.requests for _ in range(count))

    @property
    def key(self) -> str:
        """Identifies the case over runs."""
        kv = "" if self.kv_dtype == self.dtype else f"/kv-{self.kv_dtype}"
        mode = "/invariant" if self.invariant else ""
        return f"{self.suite}/{self.name}/{self.dtype}{kv}/{self.layout}{self.page_size}{mode}"

    def but(self, **changes: Any) -> BenchCase:
        """The same case with some fields changed."""
        return replace(self, **changes)

    def problem(self, device: str) -> chunkattn.AttentionSpec:
        """The facts by which chunkattn chooses a backend."""
        heads = self.heads
        return chunkattn.AttentionSpec(
            device,
            DTYPES[self.dtype],
            DTYPES[self.kv_dtype],
            heads.num_q_heads,
            heads.num_kv_heads,
            heads.head_dim,
            heads.head_dim_v,
            self.page_size,
            window=heads.window != (-1, -1),
            softcap=heads.softcap > 0,
            sinks=heads.sinks,
            kv_scale="tensor" if self._quantised else "none",
            invariant=self.invariant,
        )

    @property
    def _quantised(self) -> bool:
        return self.kv_dtype.startswith(("fp8", "int8"))

    def attention_case(self, *, set_index: int = 0) -> AttentionCase:
        """The case in the terms of `chunkattn.testing`; each index gives other data on other pages."""
        return AttentionCase(
            self.key,
            self.q_lens,
            self.kv_lens,
            num_q_heads=self.heads.num_q_heads,
            num_kv_heads=self.heads.num_kv_heads,
            head_dim=self.heads.head_dim,
            head_dim_v=self.heads.head_dim_v,
            page_size=self.page_size,
            dtype=DTYPES[self.dtype],
            kv_dtype=DTYPES[self.kv_dtype],
            scale_mode="tensor" if self._quantised else "none",
            layout="nhd" if self.layout == "nhd" else "hnd",
            window=self.heads.window,
            softcap=self.heads.softcap,
            sinks=self.heads.sinks,
            invariant=self.invariant,
            spare_columns=0,
            spare_pages=8,
            seed=self.seed + 7919 * set_index,
        )

"""Splitting a batch into the parts that phase-split kernels want: rows of chunks, rows of decodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chunkattn.testing import AttentionInputs


@dataclass(frozen=True)
class Rows:
    """Token rows of some requests, in batch order.

    Attributes:
        requests: their numbers.
        span: (first, end) if the rows are one run, so that a view does; else None.
        index: int64 row numbers.
    """

    requests: list[int]
    span: tuple[int, int] | None
    index: Tensor

    def of(self, tensor: Tensor) -> Tensor:
        """Those rows of a [T, …] tensor: a view where possible, else a copy."""
        return tensor[self.span[0] : self.span[1]] if self.span else tensor[self.index]


def rows_of(inputs: AttentionInputs, requests: list[int]) -> Rows:
    """The token rows of some requests."""
    starts = inputs.cu_seqlens_q.tolist()
    spans = [torch.arange(starts[r], starts[r + 1]) for r in requests]
    index = torch.cat(spans) if spans else torch.empty(0, dtype=torch.int64)
    whole = len(index) and int(index[-1]) - int(index[0]) + 1 == len(index)
    return Rows(requests, (int(index[0]), int(index[-1]) + 1) if whole else None, index)


def chunks_and_decodes(inputs: AttentionInputs) -> tuple[Rows, Rows]:
    """Requests with more than one query token, and those with one."""
    lengths = (inputs.cu_seqlens_q[1:] - inputs.cu_seqlens_q[:-1]).tolist()
    return (
        rows_of(inputs, [r for r, q in enumerate(lengths) if q > 1]),
        rows_of(inputs, [r for r, q in enumerate(lengths) if q == 1]),
    )


def token_slots(inputs: AttentionInputs, request: int) -> Tensor:
    """int64 [kv_len], ``page * P + offset`` of every key of a request."""
    page_size = inputs.k_cache.shape[1]
    position = torch.arange(int(inputs.seq_lens[request]))
    return inputs.block_table[request, position // page_size].long() * page_size + position % page_size


def plain_only(window: tuple[int, int], sinks: bool, softcap: float, quantised: bool) -> str | None:
    """Why a provider without options cannot do a case, or None."""
    for given, name in ((window != (-1, -1), "window"), (sinks, "sinks"), (softcap != 0, "soft-cap")):
        if given:
            return f"this adapter does no {name}"
    return "this adapter does no quantised cache" if quantised else None

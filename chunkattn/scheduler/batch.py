"""One step's work: which tokens of which requests, and the tensors the kernels take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from chunkattn.scheduler.request import Request
from chunkattn.types import Batch


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of one request, computed in one step.

    Attributes:
        request: whose tokens.
        start: position of the first.
        num_tokens: how many, at least 1.
        is_decode: whether the request was decoding; bookkeeping only, the operators do not ask.
        samples: whether the last row's logits give the request's next token.
        block_table: the request's pages when the step was scheduled; stays valid when the request is aborted while
            the step runs.
    """

    request: Request
    start: int
    num_tokens: int
    is_decode: bool
    samples: bool
    block_table: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True)
class StepMetadata:
    """A step as tensors.

    Attributes:
        input_ids: [T] int64, the new tokens, requests one after another.
        positions: [T] int64, their positions.
        slot_mapping: [T] int64, page * page_size + offset of each new token.
        attention: int32 lengths and page tables, as the operators take them.
        logits_indices: [n] int64, last row of every chunk that samples.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    attention: Batch
    logits_indices: Tensor


@dataclass(frozen=True)
class ScheduledBatch:
    """What `Scheduler.schedule` decided for one step: decodes first, then prefills.

    Attributes:
        step: number of the step, from 0.
        chunks: the work; at most one chunk per request.
        preempted: requests that lost their pages to make room.
    """

    step: int
    chunks: tuple[Chunk, ...]
    preempted: tuple[Request, ...] = field(default=())

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def sampling(self) -> tuple[Chunk, ...]:
        """The chunks that sample, in the order of ``StepMetadata.logits_indices``."""
        return tuple(chunk for chunk in self.chunks if chunk.samples)

    def to_metadata(self, page_size: int, device: torch.device | str = "cpu") -> StepMetadata:
        """Builds the step's tensors; one host-to-device copy per tensor, no sync.

        Args:
            page_size: tokens per page of the cache.
            device: of the result.
        """
        input_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for chunk in self.chunks:
            input_ids += chunk.request.tokens(chunk.start, chunk.end)
            positions += range(chunk.start, chunk.end)
            slots += _slots(chunk.block_table, chunk.start, chunk.end, page_size)
        ends = list(accumulate(chunk.num_tokens for chunk in self.chunks))
        return StepMetadata(
            input_ids=_int64(input_ids, device),
            positions=_int64(positions, device),
            slot_mapping=_int64(slots, device),
            attention=Batch.from_lists(
                [chunk.num_tokens for chunk in self.chunks],
                [chunk.end for chunk in self.chunks],
                [chunk.block_table for chunk in self.chunks],
                device=device,
            ),
            logits_indices=_int64(
                [end - 1 for end, chunk in zip(ends, self.chunks, strict=True) if chunk.samples], device
            ),
        )


def _slots(block_table: Sequence[int], start: int, end: int, page_size: int) -> list[int]:
    return [block_table[p // page_size] * page_size + p % page_size for p in range(start, end)]


def _int64(values: Sequence[int], device: torch.device | str) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)

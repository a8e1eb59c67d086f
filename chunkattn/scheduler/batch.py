"""One step's work: which tokens of which requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chunkattn.scheduler.request import Request


class Chunk(NamedTuple):
    """Consecutive tokens of one request, computed in one step; a tuple because one is made for every decode.

    Attributes:
        request: whose tokens.
        start: position of the first.
        num_tokens: how many known ones, at least 1.
        is_decode: whether the request was decoding; bookkeeping only, the operators do not ask.
        samples: whether the last row's logits give the request's next token.
        block_table: the request's pages when the step was scheduled; stays valid when the request is aborted while
            the step runs.
        num_drafts: guessed tokens that may follow; budget and pages are there for them.
    """

    request: Request
    start: int
    num_tokens: int
    is_decode: bool
    samples: bool
    block_table: Sequence[int]
    num_drafts: int = 0

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


class ScheduledBatch(NamedTuple):
    """What `Scheduler.schedule` decided for one step: decodes first, then prefills.

    Attributes:
        step: number of the step, from 0.
        chunks: the work; at most one chunk per request.
        preempted: requests that lost their pages to make room.
    """

    step: int
    chunks: tuple[Chunk, ...]
    preempted: tuple[Request, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Rows of the step, drafts included."""
        return sum([chunk.num_tokens + chunk.num_drafts for chunk in self.chunks])

    @property
    def sampling(self) -> tuple[Chunk, ...]:
        """The chunks that sample, in order."""
        return tuple(chunk for chunk in self.chunks if chunk.samples)

"""Continuous batching with chunked prefill: what runs in the next step.

There is no prefill phase and no decode phase. A request is a number of known tokens of which some have their keys
and values in the cache; a step hands out at most ``token_budget`` tokens, decodes first, so that no running user
waits for somebody else's prompt (Sarathi-Serve: Agrawal et al., OSDI 2024).

A prompt takes all its pages when it is admitted. A prefill can then never run out of pages half-way, only decodes
can preempt. The first request in policy order is never the victim of another, so it finishes, and then the next:
nobody starves.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from chunkattn.scheduler.batch import Chunk, ScheduledBatch
from chunkattn.scheduler.config import SchedulerConfig
from chunkattn.scheduler.pages import PagePool
from chunkattn.scheduler.policy import Fcfs, Policy
from chunkattn.scheduler.request import Request, Status, slots_needed


class Scheduler:
    """Decides step by step; `schedule` and `update` alternate.

    `schedule` moves pages and queues only. ``num_computed_tokens`` moves in `update`: keys and values exist once
    the step has run.

    Attributes:
        config: the limits.
        pool: the page allocator.
        waiting: not started or preempted, without pages.
        running: admitted, with pages.
    """

    def __init__(self, config: SchedulerConfig, policy: Policy | None = None) -> None:
        self.config = config
        self.pool = PagePool(config.num_pages, config.page_size)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._policy = policy or Fcfs()
        self._requests: dict[str, Request] = {}
        self._num_added = 0
        self._step = 0
        self._in_flight: ScheduledBatch | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add_request(self, request: Request) -> None:
        """Queues a request.

        Raises:
            ValueError: an empty prompt, ``max_tokens`` below 1, an id in use, or a request that could never fit
                into the cache.
        """
        if not request.prompt_token_ids:
            raise ValueError("prompt_token_ids: expected at least one token, got none")
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens: expected at least 1, got {request.max_tokens}")
        if request.request_id in self._requests:
            raise ValueError(f"request_id: expected an unused id, got {request.request_id!r} again")
        slots = slots_needed(len(request.prompt_token_ids), request.max_tokens)
        if self.pool.pages_for(slots) > self.pool.num_pages:
            raise ValueError(
                f"prompt_token_ids: expected a request of at most {self.pool.num_pages * self.pool.page_size} KV slots "
                f"({self.pool.num_pages} pages of {self.pool.page_size}), got {len(request.prompt_token_ids)} prompt "
                f"tokens and max_tokens {request.max_tokens}, which need {slots}: it can never fit"
            )
        request.sequence_number = self._num_added
        self._num_added += 1
        self._requests[request.request_id] = request
        self.waiting.append(request)

    def abort(self, request_id: str) -> None:
        """Ends a request in any state, also while its step runs; an unknown or finished id does nothing."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, Status.FINISHED_ABORTED)

    def schedule(self) -> ScheduledBatch:
        """Chooses the next step's work; empty only when there is none.

        Raises:
            RuntimeError: the previous batch was not handed to `update`.
        """
        if self._in_flight is not None:
            raise RuntimeError("schedule: expected update() of the previous batch first")
        self.running.sort(key=self._policy.order)
        self.waiting.sort(key=self._policy.order)
        budget = sys.maxsize if self.config.token_budget is None else self.config.token_budget
        chunks, preempted = self._place_decodes()
        budget -= len(chunks)
        budget -= self._place_prefills(chunks, budget)
        if not preempted:  # else the victim would take its own pages straight back
            self._admit(chunks, budget)
        self._in_flight = ScheduledBatch(self._step, tuple(chunks), tuple(preempted))
        self._step += 1
        return self._in_flight

    def update(self, batch: ScheduledBatch, sampled: Mapping[str, int]) -> list[tuple[Request, int]]:
        """Takes a step's results.

        Args:
            batch: what `schedule` gave last.
            sampled: next token by request id, for every chunk with ``samples``.

        Returns:
            The new (request, token) pairs; none for requests aborted while the step ran.

        Raises:
            RuntimeError: another batch than the last.
            ValueError: a token is missing; nothing has changed then.
        """
        if batch is not self._in_flight:
            raise RuntimeError("update: expected the batch that schedule() gave last")
        live = [chunk for chunk in batch.chunks if chunk.request.status is Status.RUNNING]
        for chunk in live:
            if chunk.samples and chunk.request.request_id not in sampled:
                raise ValueError(f"sampled: expected a token for request {chunk.request.request_id!r}, got none")
        self._in_flight = None
        emitted = []
        for chunk in live:
            request = chunk.request
            request.num_computed_tokens = chunk.end
            if not chunk.samples:
                continue
            token = sampled[request.request_id]
            request.output_token_ids.append(token)
            emitted.append((request, token))
            status = request.is_complete()
            if status is not None:
                self._finish(request, status)
        return emitted

    def _place_decodes(self) -> tuple[list[Chunk], list[Request]]:
        chunks: list[Chunk] = []
        preempted: list[Request] = []
        for request in [r for r in self.running if r.is_decode]:
            if request.status is not Status.RUNNING:
                continue  # a victim of an earlier decode
            while request.status is Status.RUNNING and not self._page_for_next_token(request):
                # The last in policy order: never one placed already, since placing goes in that order.
                victim = self.running[-1]
                self._preempt(victim)
                preempted.append(victim)
            if request.status is Status.RUNNING:
                chunks.append(_chunk(request, 1))
        return chunks, preempted

    def _page_for_next_token(self, request: Request) -> bool:
        """Makes sure the request owns the page its next token goes to."""
        if request.num_computed_tokens < len(request.block_table) * self.config.page_size:
            return True
        if not len(self.pool):
            return False
        request.block_table += self.pool.alloc(1)
        return True

    def _place_prefills(self, chunks: list[Chunk], budget: int) -> int:
        """Goes on with admitted prompts; they own all their pages, so this cannot fail."""
        used = 0
        for request in self.running:
            if not request.is_decode and used < budget:
                chunks.append(_chunk(request, self._chunk_len(request, budget - used)))
                used += chunks[-1].num_tokens
        return used

    def _admit(self, chunks: list[Chunk], budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            need = self.pool.pages_for(request.num_tokens)
            # Alone, a request may use every page: otherwise one that just fits would wait for ever.
            reserve = int(self.config.watermark * self.pool.num_pages) if self.running else 0
            if need + reserve > len(self.pool):
                return  # the head of the line keeps its place
            self.waiting.pop(0)
            self.running.append(request)
            request.status = Status.RUNNING
            request.block_table = self.pool.alloc(need)
            request.prefill_until = request.num_tokens
            chunks.append(_chunk(request, self._chunk_len(request, budget)))
            budget -= chunks[-1].num_tokens

    def _chunk_len(self, request: Request, available: int) -> int:
        remaining = request.num_tokens - request.num_computed_tokens
        if remaining <= available:
            return remaining
        end = request.num_computed_tokens + available
        aligned = end - end % self.config.chunk_alignment
        return aligned - request.num_computed_tokens if aligned > request.num_computed_tokens else available

    def _preempt(self, request: Request) -> None:
        """Drops the request's keys and values; it will compute them again."""
        self._take_pages(request)
        self.running.remove(request)
        request.num_computed_tokens = 0
        request.status = Status.PREEMPTED
        request.num_preemptions += 1
        self.waiting.append(request)
        self.waiting.sort(key=self._policy.order)

    def _finish(self, request: Request, status: Status) -> None:
        self._take_pages(request)
        queue = self.running if request.status is Status.RUNNING else self.waiting
        queue.remove(request)
        request.status = status
        del self._requests[request.request_id]

    def _take_pages(self, request: Request) -> None:
        self.pool.release(request.block_table)
        request.block_table = []  # a new list: the batch in flight keeps the old one


def _chunk(request: Request, num_tokens: int) -> Chunk:
    start = request.num_computed_tokens
    return Chunk(
        request,
        start,
        num_tokens,
        is_decode=request.is_decode,
        samples=start + num_tokens == request.num_tokens,
        block_table=request.block_table,
    )

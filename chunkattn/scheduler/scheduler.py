"""Continuous batching with chunked prefill: what runs in the next step.

There is no prefill phase and no decode phase. A request is a number of known tokens of which some have their keys and
values in the cache; a step hands out at most ``token_budget`` tokens, decodes first, so that no running user waits for
somebody else's prompt (Sarathi-Serve: Agrawal et al., OSDI 2024).

A prompt takes all its pages when it is admitted: a prefill cannot run out of pages half-way, only decodes preempt. The
first request in policy order is nobody's victim, so it finishes, and then the next: nobody starves.
"""

from __future__ import annotations

import sys
from array import array
from bisect import insort
from collections.abc import Mapping, Sequence
from operator import attrgetter

from chunkattn.scheduler.batch import Chunk, ScheduledBatch
from chunkattn.scheduler.config import SchedulerConfig
from chunkattn.scheduler.pages import CachedPage, PagePool
from chunkattn.scheduler.policy import Policy, make_policy
from chunkattn.scheduler.request import Request, Status, slots_needed

_ORDER = attrgetter("key")


class Scheduler:
    """Decides step by step; `schedule` and `update` alternate.

    `schedule` moves pages and queues only. ``num_computed_tokens`` moves in `update`: keys and values exist once the
    step has run.

    Attributes:
        config: the limits.
        pool: the page allocator.
        waiting, running: requests without and with pages, in policy order.
        num_served_tokens, num_recomputed_tokens: known tokens computed so far, and those computed before.
    """

    def __init__(self, config: SchedulerConfig, policy: Policy | None = None) -> None:
        self.config = config
        self.pool = PagePool(config.num_pages, config.page_size)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_served_tokens = self.num_recomputed_tokens = 0
        self._policy = policy or make_policy(config)
        self._requests: dict[str, Request] = {}
        self._num_added = self._step = 0
        self._in_flight: ScheduledBatch | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add_request(self, request: Request) -> None:
        """Queues a request.

        Raises:
            ValueError: an empty prompt, ``max_tokens`` below 1, an id in use, or a request that could never fit.
        """
        if not request.prompt_token_ids:
            raise ValueError("prompt_token_ids: expected at least one token, got none")
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens: expected at least 1, got {request.max_tokens}")
        if request.request_id in self._requests:
            raise ValueError(f"request_id: expected an unused id, got {request.request_id!r} again")
        if not 0 <= request.num_external_tokens < request.num_tokens:
            raise ValueError(
                f"num_external_tokens: expected less than the {request.num_tokens} known tokens, "
                f"got {request.num_external_tokens}"
            )
        slots = slots_needed(len(request.prompt_token_ids), request.max_tokens)
        if self.pool.pages_for(slots) > self.pool.num_pages:
            raise ValueError(
                f"prompt_token_ids: expected a request of at most {self.pool.num_pages * self.pool.page_size} KV slots "
                f"({self.pool.num_pages} pages of {self.pool.page_size}), got {len(request.prompt_token_ids)} prompt "
                f"tokens and max_tokens {request.max_tokens}, which need {slots}: it can never fit"
            )
        request.sequence_number = self._num_added
        self._num_added += 1
        self._policy.on_add(request, self.num_served_tokens)
        self._requests[request.request_id] = request
        self._extend_keys(request)
        insort(self.waiting, request, key=_ORDER)

    def abort(self, request_id: str) -> None:
        """Ends a request in any state, also while its step runs; an unknown or finished id does nothing."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, Status.FINISHED_ABORTED)

    def schedule(self) -> ScheduledBatch:
        """Chooses the next step's work; empty only when there is none, or all of the pool is held elsewhere.

        Raises:
            RuntimeError: the previous batch was not handed to `update`.
        """
        if self._in_flight is not None:
            raise RuntimeError("schedule: expected update() of the previous batch first")
        if self._policy.refresh(self._requests.values()):
            self.running.sort(key=_ORDER)
            self.waiting.sort(key=_ORDER)
        config = self.config
        budget = sys.maxsize if config.token_budget is None else config.token_budget
        decodes: list[Request] = []
        prefills: dict[Request, int] = {}
        preempted: list[Request] = []
        if not config.prefill_first:
            preempted = self._place_decodes(decodes)
        budget -= len(decodes)
        cap = self._long_prefill_cap(budget)
        for request in self.running:  # they own the pages of their prompt, so this cannot fail
            if budget > 0 and request.num_computed_tokens < request.prefill_until:
                prefills[request] = self._chunk_len(request, min(budget, cap))
                budget -= prefills[request]
        if not preempted:  # else the victim would take its own pages straight back
            budget = self._admit(decodes, prefills, budget, cap)
        for request, length in prefills.items():  # what the cap kept from the long prompts and nobody else wanted
            if budget <= 0:
                break
            prefills[request] = self._chunk_len(request, length + budget)
            budget -= prefills[request] - length
        if config.prefill_first and not prefills:
            preempted = self._place_decodes(decodes)
            budget -= len(decodes)
        drafts = self._place_drafts(decodes, budget) if config.num_draft_tokens else {}
        chunks = [
            Chunk(r, r.num_computed_tokens, 1, True, True, r.block_table, drafts.get(r, 0) if drafts else 0)
            for r in decodes
        ]
        for request, length in prefills.items():
            start = request.num_computed_tokens
            samples = start + length == request.num_tokens
            chunks.append(Chunk(request, start, length, False, samples, request.block_table))
        self._in_flight = ScheduledBatch(self._step, tuple(chunks), tuple(preempted))
        self._step += 1
        return self._in_flight

    def update(self, batch: ScheduledBatch, sampled: Mapping[str, int | Sequence[int]]) -> list[tuple[Request, int]]:
        """Takes a step's results.

        Args:
            batch: what `schedule` gave last.
            sampled: next token by request id, for every chunk with ``samples``; several where drafts were right.

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
        emitted: list[tuple[Request, int]] = []
        page_size, caching = self.config.page_size, self.config.enable_prefix_caching
        for request, start, length, is_decode, samples, _, _ in live:
            end = start + length
            status = None
            if samples:
                tokens = sampled[request.request_id]
                for token in (tokens,) if isinstance(tokens, int) else tokens:
                    status = request.take(token)
                    emitted.append((request, token))
                    if status is not None:
                        break
                end = request.num_tokens - 1  # the keys and values of accepted drafts are there already
            request.num_computed_tokens = end
            new = end - max(start, min(end, request.num_charged_tokens))
            self.num_served_tokens += end - start
            self.num_recomputed_tokens += end - start - new
            if new:
                request.num_charged_tokens = end
                self._policy.on_service(request, new, is_decode)
            if caching and end >= (request.num_committed + 1) * page_size:
                self._commit(request)
            if status is not None:
                self._finish(request, status)
        return emitted

    def _place_decodes(self, placed: list[Request]) -> list[Request]:
        """Gives every decode its token, in policy order; returns who was preempted for it."""
        preempted: list[Request] = []
        page_size = self.config.page_size
        for request in tuple(self.running):
            if request.num_computed_tokens < request.prefill_until or request.status is not Status.RUNNING:
                continue  # a prompt, or a victim of an earlier decode
            while request.num_computed_tokens >= len(request.block_table) * page_size:
                if len(self.pool):
                    request.block_table += self.pool.alloc(1)
                    continue
                # The last in policy order: never one placed already, since placing goes in that order.
                preempted.append(self.running[-1])
                self._preempt(preempted[-1])
                if preempted[-1] is request:
                    break
            else:
                placed.append(request)
        return preempted

    def _place_drafts(self, decodes: list[Request], budget: int) -> dict[Request, int]:
        """Leaves room for guesses: from budget and pages that nobody else wants, and not beyond ``max_tokens``."""
        drafts = {}
        for request in decodes:
            room = min(budget, self.config.num_draft_tokens, request.max_tokens - len(request.output_token_ids) - 1)
            need = self.pool.pages_for(request.num_tokens + room) - len(request.block_table)
            request.block_table += self.pool.alloc(max(min(need, len(self.pool)), 0))
            drafts[request] = min(room, len(request.block_table) * self.config.page_size - request.num_tokens)
            budget -= drafts[request]
        return drafts

    def _admit(self, decodes: list[Request], prefills: dict[Request, int], budget: int, cap: int) -> int:
        """Starts waiting requests in policy order; returns the budget left."""
        computing = {key for request, length in prefills.items() for key in self._keys_computed(request, length)}
        i = 0
        while i < len(self.waiting) and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[i]
            # The last token is always computed: its logits are wanted.
            keys = request.page_keys[: (request.num_tokens - 1) // self.config.page_size]
            hit = self.pool.match(keys, request.extra_keys)
            if len(hit) < len(keys) and keys[len(hit)][0] in computing:
                i += 1  # its next page is being computed in this step: wait and share it
                continue
            if not self._take_pages(request, hit):
                break  # the head of the line keeps its place
            del self.waiting[i]
            if request.is_decode:
                decodes.append(request)
                budget -= 1
                continue
            prefills[request] = self._chunk_len(request, min(budget, cap))
            budget -= prefills[request]
            computing.update(self._keys_computed(request, prefills[request]))
        return budget

    def _take_pages(self, request: Request, hit: list[CachedPage]) -> bool:
        """Moves a request to the running ones, with the pages of all its tokens, if they are free."""
        pool, config = self.pool, self.config
        outputs = request.max_tokens - len(request.output_token_ids)
        tokens = slots_needed(request.num_tokens, outputs) if config.reserve_max_tokens else request.num_tokens
        need = pool.pages_for(tokens) - len(hit)
        revived = sum(not pool.references[entry.page] for entry in hit)  # on the free list, and wanted as they are
        # Alone, a request may use every page: otherwise one that just fits would wait for ever.
        reserve = int(config.watermark * pool.num_pages) if self.running else 0
        if need + revived + reserve > len(pool):
            return False
        request.block_table = [entry.page for entry in hit]
        pool.acquire(request.block_table)
        request.block_table += pool.alloc(need)
        request.num_committed = len(hit)
        request.chain = hit[-1] if hit else request.extra_keys
        request.num_cached_tokens = len(hit) * config.page_size
        request.num_computed_tokens = max(request.num_cached_tokens, request.num_external_tokens)
        # With everything but the sampled token brought along there is no prompt to compute.
        only_sampled = request.output_token_ids and request.num_external_tokens == request.num_tokens - 1
        request.prefill_until = request.num_tokens - 1 if only_sampled else request.num_tokens
        request.status = Status.RUNNING
        insort(self.running, request, key=_ORDER)
        return True

    def _long_prefill_cap(self, budget: int) -> int:
        """Most prompt tokens of one request in the first round."""
        requests = len(self.running) + len(self.waiting)
        threshold = self.config.long_prefill_token_threshold
        return max(threshold, budget // requests) if threshold and requests > 1 else sys.maxsize

    def _chunk_len(self, request: Request, available: int) -> int:
        remaining = request.num_tokens - request.num_computed_tokens
        if remaining <= available:
            return remaining
        end = request.num_computed_tokens + available
        aligned = end - end % self.config.chunk_alignment
        return aligned - request.num_computed_tokens if aligned > request.num_computed_tokens else available

    def _keys_computed(self, request: Request, length: int) -> list[bytes]:
        """Hashes of the pages that a chunk computes, wholly or in part."""
        start, page_size = request.num_computed_tokens, self.config.page_size
        keys = request.page_keys[start // page_size : self.pool.pages_for(start + length)]
        return [digest for digest, _ in keys]

    def _extend_keys(self, request: Request) -> None:
        """Hashes the full pages of the known tokens."""
        if self.config.enable_prefix_caching:
            keys, size = request.page_keys, self.config.page_size
            for page in range(len(keys), request.num_tokens // size):
                tokens = array("q", request.tokens(page * size, (page + 1) * size)).tobytes()
                parent = keys[-1][0] if keys else repr(request.extra_keys).encode()
                keys.append((self.pool.hash_page(parent, tokens), tokens))

    def _commit(self, request: Request) -> None:
        """Makes the pages that are full and computed now findable."""
        self._extend_keys(request)
        for page in range(request.num_committed, request.num_computed_tokens // self.config.page_size):
            if request.chain is not None:
                request.chain = self.pool.commit(request.block_table[page], request.page_keys[page], request.chain)
            request.num_committed = page + 1

    def _preempt(self, request: Request) -> None:
        """Drops the request's keys and values; it will compute them again."""
        self._drop_pages(request)
        self.running.remove(request)
        request.num_computed_tokens = request.num_external_tokens = 0
        request.status = Status.PREEMPTED
        request.num_preemptions += 1
        insort(self.waiting, request, key=_ORDER)

    def _finish(self, request: Request, status: Status) -> None:
        self._drop_pages(request)
        (self.running if request.status is Status.RUNNING else self.waiting).remove(request)
        request.status = status
        del self._requests[request.request_id]
        self._policy.on_finish(request)

    def _drop_pages(self, request: Request) -> None:
        self.pool.release(request.block_table)
        request.block_table = []  # a new list: the batch in flight keeps the old one

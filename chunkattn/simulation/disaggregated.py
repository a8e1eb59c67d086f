"""Prefill and decode on two workers; keys and values go from one to the other, page by page.

The prefill worker runs one whole prompt a step, up to the first token, and keeps the pages until they are handed over.
The link carries one request after another. The decode worker takes a request when its last page is there.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import chunkattn
from chunkattn.scheduler import Request, ScheduledBatch
from chunkattn.serving import ModelExecutor, RequestRecord
from chunkattn.simulation.replay import OnStep, Worker, replay


@dataclass(frozen=True)
class Link:
    """What moving pages costs.

    Attributes:
        bytes_per_second: bandwidth.
        seconds_per_page: fixed cost of a page.
        page_bytes: keys and values of one page, all layers.
    """

    bytes_per_second: float
    seconds_per_page: float
    page_bytes: int

    def seconds(self, num_pages: int) -> float:
        """Time of one request's pages."""
        return num_pages * (self.page_bytes / self.bytes_per_second + self.seconds_per_page)


class PageHandover:
    """Moves real keys and values between two executors: out when a prompt is done, in when its decode begins."""

    def __init__(self, source: ModelExecutor, target: ModelExecutor) -> None:
        self._source = source
        self._target = target
        self._blocks: dict[str, list[tuple[Tensor, Tensor]]] = {}

    @property
    def metadata_seconds(self) -> float:
        """What building the last step's tensors took."""
        return self._target.metadata_seconds

    def take(self, request: Request, pages: Sequence[int]) -> None:
        """Copies a prompt's pages out of the prefill worker's cache."""
        device = self._source.cache[0].k_cache.device
        ids = torch.tensor(pages, dtype=torch.int32, device=device)
        self._blocks[request.request_id] = [
            (chunkattn.gather_pages(layer.k_cache, ids), chunkattn.gather_pages(layer.v_cache, ids))
            for layer in self._source.cache
        ]

    def __call__(self, batch: ScheduledBatch) -> dict[str, int | list[int]]:
        """The decode worker's executor: puts the pages of new requests in place, then runs the step."""
        for chunk in batch.chunks:
            blocks = self._blocks.pop(chunk.request.request_id, None)
            if blocks is None or not chunk.request.num_external_tokens:
                continue  # an old acquaintance, or it was preempted before its first step and recomputes
            device = self._target.cache[0].k_cache.device
            pages = torch.tensor(chunk.block_table[: len(blocks[0][0])], dtype=torch.int32, device=device)
            for (keys, values), layer in zip(blocks, self._target.cache, strict=True):
                chunkattn.scatter_pages(keys, layer.k_cache, pages)
                chunkattn.scatter_pages(values, layer.v_cache, pages)
        return self._target(batch)


def replay_disaggregated(
    prefill: Worker,
    decode: Worker,
    requests: Sequence[Request],
    link: Link,
    handover: PageHandover | None = None,
    on_step: OnStep | None = None,
) -> dict[str, RequestRecord]:
    """Runs requests over two workers.

    Args:
        prefill: runs prompts.
        decode: runs answers; its executor is ``handover`` where that is given.
        requests: in the order of their arrival times.
        link: transfer cost.
        handover: moves real pages; None in a simulation.
        on_step: called after every step of either worker.

    Returns:
        Every request's life, by id.
    """
    handed = _run_prompts(prefill, requests, link, handover, on_step)
    replay(decode, sorted(handed, key=lambda request: request.arrival_time), on_step)
    records = dict(prefill.recorder.requests)
    arrivals = {request.request_id: request.arrival_time for request in requests}
    for request in handed:
        first, rest = records[request.request_id], decode.recorder.requests[request.request_id]
        # The request arrived at the prefill worker, not when its pages reached the other one.
        request.arrival_time = arrivals[request.request_id]
        records[request.request_id] = replace(first, request=request, token_times=first.token_times + rest.token_times)
    return records


def _run_prompts(
    worker: Worker, requests: Sequence[Request], link: Link, handover: PageHandover | None, on_step: OnStep | None
) -> list[Request]:
    """Prefills everything; returns the requests as the decode worker gets them, arriving with their last page."""
    scheduler, pool, clock = worker.engine.scheduler, worker.engine.scheduler.pool, worker.clock
    leaving: list[tuple[float, int, list[int]]] = []  # (when handed over, number, pages) still held
    handed: list[Request] = []
    link_free = 0.0
    arrived = 0
    while arrived < len(requests) or scheduler.has_work:
        if not scheduler.has_work:
            clock.skip_to(requests[arrived].arrival_time)
        now = clock()
        while leaving and leaving[0][0] <= now:
            pool.release(heapq.heappop(leaving)[2])
        while arrived < len(requests) and requests[arrived].arrival_time <= now:
            whole = requests[arrived]
            scheduler.add_request(
                Request(
                    whole.request_id,
                    whole.prompt_token_ids,
                    1,
                    whole.eos_token_ids,
                    whole.arrival_time,
                    whole.client_id,
                )
            )
            arrived += 1
        held = {request.request_id: request for request in scheduler.running + scheduler.waiting}
        record = worker.step()
        if on_step is not None:
            on_step(record, scheduler)
        if not record.batch.chunks:  # every page waits for the link
            clock.skip_to(leaving[0][0] if leaving else math.inf)
        for chunk in record.batch.chunks:
            request = held[chunk.request.request_id]
            original = requests[int(request.sequence_number)]
            if not chunk.samples or original.max_tokens == 1:
                continue
            pages = list(chunk.block_table)
            if handover is not None:
                handover.take(request, pages)
            # Released when the request finished; held on until they are over.
            pool.acquire(pages)
            link_free = max(link_free, record.end) + link.seconds(len(pages))
            heapq.heappush(leaving, (link_free, len(handed), pages))
            decode = replace(
                original,
                arrival_time=link_free,
                num_external_tokens=len(original.prompt_token_ids),
                output_token_ids=list(request.output_token_ids),
            )
            handed.append(decode)
    return handed

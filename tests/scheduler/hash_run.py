"""A scheduler over the hash model, stepped by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hash_model import HashModel, free_pages

from chunkattn.scheduler import Policy, Request, ScheduledBatch, Scheduler, SchedulerConfig, Status

Row = tuple[str, int, bool, bool]  # id, tokens, is_decode, samples


class HashRun:
    """Keeps every batch; the prefix cache is off unless asked for."""

    def __init__(
        self,
        *,
        budget: int | None,
        seqs: int = 4,
        page: int = 16,
        pages: int = 64,
        with_policy: Policy | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("enable_prefix_caching", False)
        config = SchedulerConfig(token_budget=budget, max_num_seqs=seqs, page_size=page, num_pages=pages, **options)
        self.scheduler = Scheduler(config, with_policy)
        self.model = HashModel(pages, page, self.scheduler)
        self.batches: list[ScheduledBatch] = []

    def add(self, name: str, prompt: int | Sequence[int], max_tokens: int, **fields: Any) -> Request:
        """A prompt by its tokens, or by its length alone."""
        if isinstance(prompt, int):
            prompt = [(i * 7 + len(name)) % 50 for i in range(prompt)]
        request = Request(name, prompt, max_tokens, **fields)
        self.scheduler.add_request(request)
        return request

    def step(self) -> list[Row]:
        batch = self.scheduler.schedule()
        self.batches.append(batch)
        for chunk in batch.chunks:
            assert len(chunk.request.output_token_ids) + chunk.num_drafts < chunk.request.max_tokens
        self.scheduler.update(batch, self.model(batch))
        return [(c.request.request_id, c.num_tokens, c.is_decode, c.samples) for c in batch.chunks]

    def drain(self) -> list[list[Row]]:
        steps = []
        while self.scheduler.has_work:
            steps.append(self.step())
            assert len(steps) < 1000, "starvation or livelock"
        check_pool(self.scheduler)
        assert len(self.scheduler.pool) == self.scheduler.config.num_pages, "a page leaked"
        return steps


def check_pool(scheduler: Scheduler, requests: Sequence[Request] | None = None) -> None:
    """References, free list and content index agree with the block tables."""
    pool = scheduler.pool
    held = [0] * len(pool.references)
    for request in requests if requests is not None else scheduler.running + scheduler.waiting:
        assert request.status is Status.RUNNING or not request.block_table
        for page in request.block_table:
            held[page] += 1
    assert pool.references == held
    assert set(free_pages(pool)) == {page for page, count in enumerate(held) if not count}
    assert len(pool) == pool.num_pages - sum(map(bool, held))
    content = {entry.digest: entry for entry in pool._content if entry is not None}
    assert content == pool._index
    assert all(pool._content[entry.page] is entry for entry in content.values())

"""Any sequence of arrivals, steps and aborts keeps the scheduler's invariants and gives the oracle's tokens."""

from __future__ import annotations

import hashlib

import pytest
from hash_model import VOCABULARY, HashModel, expected
from hash_run import check_pool
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chunkattn.scheduler import Request, ScheduledBatch, Scheduler, SchedulerConfig, Status, slots_needed

EOS = frozenset({7})
BEGINNINGS = ([], [3] * 9, [3] * 9 + list(range(12)), list(range(20)))
EXTRA_KEYS = ((), (), (), (("adapter", "x"),), (("salt", "x"),))


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    max_num_seqs = draw(st.integers(1, 5))
    budget = draw(st.none() | st.integers(max_num_seqs, 24))
    return SchedulerConfig(
        token_budget=budget,
        max_num_seqs=max_num_seqs,
        page_size=draw(st.sampled_from([1, 2, 3, 4, 8])),
        num_pages=draw(st.integers(1, 20)),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 3, 8])),
        chunk_alignment=draw(st.sampled_from([1, 1, 4])),
        enable_prefix_caching=draw(st.sampled_from([True, True, False])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.3])),
        policy=draw(st.sampled_from(["fcfs", "sjf", "fair"])),
        sjf_aging=draw(st.sampled_from([0.0, 0.25, 4.0])),
        fair_weights=draw(st.sampled_from([(1.0, 2.0), (1.0, 1.0)])),
        reserve_max_tokens=draw(st.sampled_from([False, False, False, True])),
        prefill_first=draw(st.sampled_from([False, False, False, True])),
        num_draft_tokens=draw(st.sampled_from([0, 0, 1, 3])),
    )


def constant_hash(parent: bytes, tokens: bytes) -> bytes:
    return b"always the same"


def coarse_hash(parent: bytes, tokens: bytes) -> bytes:
    """One of three values."""
    return bytes([hashlib.blake2b(parent + tokens).digest()[0] % 3])


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(config=configs(), stub=st.sampled_from([None, None, None, constant_hash, coarse_hash]))
    def start(self, config: SchedulerConfig, stub: object) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        if stub is not None:
            self.scheduler.pool.hash_page = stub
        self.model = HashModel(config.num_pages, config.page_size, self.scheduler)
        self.requests: list[Request] = []
        self.emitted: dict[str, list[int]] = {}

    @rule(
        beginning=st.sampled_from(BEGINNINGS),
        rest=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20),
        max_tokens=st.integers(1, 12),
        client=st.sampled_from("ab"),
        extra_keys=st.sampled_from(EXTRA_KEYS),
    )
    def add(
        self, beginning: list[int], rest: list[int], max_tokens: int, client: str, extra_keys: tuple[tuple[str, str]]
    ) -> None:
        prompt = beginning + rest
        request = Request(
            f"r{len(self.requests)}",
            prompt,
            max_tokens,
            EOS,
            arrival_time=float(self.scheduler._step),
            client_id=client,
            extra_keys=extra_keys,
        )
        capacity = self.config.num_pages * self.config.page_size
        if slots_needed(len(prompt), max_tokens) > capacity:
            with pytest.raises(ValueError, match="can never fit"):
                self.scheduler.add_request(request)
            return
        self.scheduler.add_request(request)
        self.requests.append(request)
        self.emitted[request.request_id] = []

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data(), abort=st.sampled_from([False, False, False, True]))
    def step(self, data: st.DataObject, abort: bool) -> None:
        decoding = [r for r in self.scheduler.running if r.is_decode]
        running = {r.request_id: r.num_computed_tokens for r in self.scheduler.running}
        batch = self.scheduler.schedule()
        self.check_batch(batch, decoding, running)
        if abort:  # while the step runs
            self.scheduler.abort(data.draw(st.sampled_from(self.requests)).request_id)
        for request, token in self.scheduler.update(batch, self.model(batch)):
            assert request.status is not Status.FINISHED_ABORTED
            self.emitted[request.request_id].append(token)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        self.scheduler.abort(request.request_id)
        assert request.status.is_finished

    def check_batch(self, batch: ScheduledBatch, decoding: list[Request], running: dict[str, int]) -> None:
        config = self.config
        assert batch.chunks
        assert config.token_budget is None or batch.num_tokens <= config.token_budget
        placed = {chunk.request.request_id: chunk for chunk in batch.chunks}
        assert len(placed) == len(batch.chunks)
        if batch.preempted:  # a victim must not take its own pages straight back
            assert set(placed) <= set(running)
            assert not config.reserve_max_tokens
        prompts = [chunk for chunk in batch.chunks if not chunk.is_decode]
        if config.prefill_first:
            assert not prompts or len(prompts) == len(batch.chunks)
        if not config.prefill_first or not prompts:
            for request in decoding:  # nobody who decodes waits for somebody's prompt
                assert request in batch.preempted or placed[request.request_id].num_tokens == 1
        kinds = [chunk.is_decode for chunk in batch.chunks]
        assert kinds == sorted(kinds, reverse=True)
        for chunk in batch.chunks:
            request = chunk.request
            assert chunk.num_tokens >= 1
            assert chunk.start == running.get(request.request_id, request.num_cached_tokens)
            assert chunk.samples == (chunk.end == request.num_tokens)
            assert len(chunk.block_table) * config.page_size >= chunk.end + chunk.num_drafts
            assert 0 <= chunk.num_drafts <= (config.num_draft_tokens if chunk.is_decode else 0)
            assert len(request.output_token_ids) + chunk.num_drafts < request.max_tokens
            cut = not chunk.samples
            if cut and config.chunk_alignment == 1:
                assert batch.num_tokens == config.token_budget, "a chunk was cut although budget was left"
            if cut and chunk.end % config.chunk_alignment:
                assert chunk.num_tokens < config.chunk_alignment

    @invariant()
    def pages_and_queues_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        check_pool(self.scheduler, self.requests)
        queues = self.scheduler.waiting + self.scheduler.running
        assert len(queues) == len({id(r) for r in queues}) == sum(not r.status.is_finished for r in self.requests)
        for request in self.scheduler.waiting:
            assert not request.block_table
            assert request.status in (Status.WAITING, Status.PREEMPTED)
        for request in self.scheduler.running:
            assert request.status is Status.RUNNING
            # Only the last known token has no key and value once a request decodes.
            assert not request.is_decode or request.num_computed_tokens == request.num_tokens - 1

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        bound = 50 + 4 * sum(len(r.prompt_token_ids) + r.max_tokens for r in self.requests)
        steps = 0
        while self.scheduler.has_work:
            batch = self.scheduler.schedule()
            for request, token in self.scheduler.update(batch, self.model(batch)):
                self.emitted[request.request_id].append(token)
            steps += 1
            assert steps <= bound, "starvation or livelock"
        assert len(self.scheduler.pool) == self.config.num_pages
        assert set(self.model.computed.values()) <= {1}, "a token was computed twice in one attempt"
        for request in self.requests:
            answer = expected(request)
            assert self.emitted[request.request_id] == request.output_token_ids
            if request.status is Status.FINISHED_ABORTED:
                assert request.output_token_ids == answer[: len(request.output_token_ids)]
            else:
                assert request.output_token_ids == answer
                stopped = answer[-1] in EOS
                assert request.status is (Status.FINISHED_STOPPED if stopped else Status.FINISHED_LENGTH)


class LongSchedulerMachine(SchedulerMachine):
    """The same with ten times the examples."""


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestSchedulerLong = pytest.mark.full(LongSchedulerMachine.TestCase)
TestSchedulerLong.settings = settings(max_examples=2000, stateful_step_count=40, deadline=None)

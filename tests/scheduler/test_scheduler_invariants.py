"""Any sequence of arrivals, steps and aborts keeps the scheduler's invariants and gives the oracle's tokens."""

from __future__ import annotations

import pytest
from hash_model import VOCABULARY, HashModel, generate
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chunkattn.scheduler import Request, ScheduledBatch, Scheduler, SchedulerConfig, Status, slots_needed

EOS = frozenset({7})


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    max_num_seqs = draw(st.integers(1, 5))
    return SchedulerConfig(
        token_budget=draw(st.none() | st.integers(max_num_seqs, 24)),
        max_num_seqs=max_num_seqs,
        page_size=draw(st.sampled_from([1, 2, 3, 4, 8])),
        num_pages=draw(st.integers(1, 14)),
        chunk_alignment=draw(st.sampled_from([1, 1, 4])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.3])),
    )


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(config=configs())
    def start(self, config: SchedulerConfig) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.model = HashModel(config.num_pages, config.page_size)
        self.requests: list[Request] = []
        self.emitted: dict[str, list[int]] = {}

    @rule(
        prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30),
        max_tokens=st.integers(1, 12),
    )
    def add(self, prompt: list[int], max_tokens: int) -> None:
        request = Request(f"r{len(self.requests)}", prompt, max_tokens, EOS)
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
        running = {r.request_id for r in self.scheduler.running}
        before = {r.request_id: r.num_computed_tokens for r in self.requests}
        batch = self.scheduler.schedule()
        if batch.preempted:  # a victim must not take its own pages straight back
            assert {chunk.request.request_id for chunk in batch.chunks} <= running
        self.check_batch(batch, decoding, before)
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

    def check_batch(self, batch: ScheduledBatch, decoding: list[Request], before: dict[str, int]) -> None:
        assert batch.chunks
        budget = self.config.token_budget
        assert budget is None or batch.num_tokens <= budget
        placed = {chunk.request.request_id: chunk for chunk in batch.chunks}
        assert len(placed) == len(batch.chunks)
        for request in decoding:  # nobody who decodes waits for somebody's prompt
            assert request in batch.preempted or placed[request.request_id].num_tokens == 1
        kinds = [chunk.is_decode for chunk in batch.chunks]
        assert kinds == sorted(kinds, reverse=True)
        for chunk in batch.chunks:
            assert chunk.num_tokens >= 1
            attempt_start = 0 if chunk.request in batch.preempted else before[chunk.request.request_id]
            assert chunk.start == attempt_start
            assert chunk.samples == (chunk.end == chunk.request.num_tokens)
            assert len(chunk.block_table) * self.config.page_size >= chunk.end
            cut = not chunk.samples
            if cut and self.config.chunk_alignment == 1:
                assert batch.num_tokens == budget, "a chunk was cut although budget was left"
            if cut and chunk.end % self.config.chunk_alignment:
                assert chunk.num_tokens < self.config.chunk_alignment

    @invariant()
    def pages_are_owned_once(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        owned = [page for request in self.requests for page in request.block_table]
        assert len(owned) == len(set(owned))
        assert len(owned) + len(self.scheduler.pool) == self.config.num_pages
        queues = self.scheduler.waiting + self.scheduler.running
        assert len(queues) == len({id(r) for r in queues}) == sum(not r.status.is_finished for r in self.requests)
        for request in self.scheduler.waiting:
            assert not request.block_table
            assert request.num_computed_tokens == 0
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
            expected = generate(list(request.prompt_token_ids), request.max_tokens, EOS)
            assert self.emitted[request.request_id] == request.output_token_ids
            if request.status is Status.FINISHED_ABORTED:
                assert request.output_token_ids == expected[: len(request.output_token_ids)]
            else:
                assert request.output_token_ids == expected
                stopped = expected[-1] in EOS
                assert request.status is (Status.FINISHED_STOPPED if stopped else Status.FINISHED_LENGTH)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)

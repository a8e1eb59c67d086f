"""Named scheduling cases: capacity at the edge, two prompts that fill the pool, stalls, replays after preemption."""

from __future__ import annotations

import math
import tracemalloc

import pytest
from hash_model import expected
from hash_run import HashRun as Run

from chunkattn.scheduler import PagePool, Request, SchedulerConfig, Status, slots_needed


@pytest.mark.parametrize("prompt_len", [47, 48, 49, 63])
def test_request_that_fills_the_pool_finishes(prompt_len: int) -> None:
    run = Run(budget=16, page=16, pages=4)
    large, small = run.add("large", prompt_len, 2), run.add("small", 8, 2)
    run.drain()
    assert large.output_token_ids == expected(large)
    assert small.output_token_ids == expected(small)


@pytest.mark.parametrize("prompt_len", [64, 65])
def test_request_beyond_the_pool_is_refused_and_blocks_nobody(prompt_len: int) -> None:
    run = Run(budget=16, page=16, pages=4)
    with pytest.raises(ValueError, match=r"at most 64 KV slots .* got 6[45] prompt tokens .*can never fit"):
        run.add("large", prompt_len, 2)
    small = run.add("small", 8, 2)
    run.drain()
    assert small.output_token_ids == expected(small)


def test_two_prompts_larger_than_the_pool_together_finish_one_after_the_other() -> None:
    run = Run(budget=16, page=16, pages=6)
    first, second = run.add("first", 64, 1), run.add("second", 64, 1)
    steps = run.drain()
    assert len(steps) == 8
    assert first.num_preemptions == second.num_preemptions == 0
    assert len(run.scheduler.pool) == 6


def test_prompt_is_cut_into_equal_chunks() -> None:
    run = Run(budget=5)
    run.add("a", 20, 1)
    assert [step[0][1] for step in run.drain()] == [5, 5, 5, 5]


def test_decode_never_waits_for_a_long_prompt() -> None:
    run = Run(budget=32, seqs=8)
    chat = run.add("chat", 4, 40)
    run.step()
    long = run.add("long", 600, 1)
    steps = run.drain()
    assert all(("chat", 1, True, True) in step for step in steps[:20])
    assert long.output_token_ids == expected(long)
    # 31 tokens a step beside the decode.
    assert [n for step in steps for name, n, _, _ in step if name == "long"] == [31] * 19 + [11]
    assert chat.output_token_ids == expected(chat)


def test_two_prompts_share_the_budget() -> None:
    run = Run(budget=32)
    run.add("a", 40, 1)
    run.add("bb", 40, 1)
    assert [[(name, n) for name, n, _, _ in step] for step in run.drain()] == [
        [("a", 32)],
        [("a", 8), ("bb", 24)],
        [("bb", 16)],
    ]


def test_without_a_budget_prompts_run_whole_beside_decodes() -> None:
    run = Run(budget=None, pages=100)
    run.add("chat", 4, 3)
    run.step()
    run.add("long", 600, 2)
    assert run.step() == [("chat", 1, True, True), ("long", 600, False, True)]


def test_cut_chunks_end_at_the_alignment_unless_that_is_nothing() -> None:
    run = Run(budget=10, chunk_alignment=8)
    run.add("a", 30, 1)
    assert [step[0][1] for step in run.drain()] == [8, 8, 8, 6]
    run = Run(budget=5, chunk_alignment=8)
    run.add("a", 12, 1)
    assert [step[0][1] for step in run.drain()] == [5, 3, 4]


def test_replay_after_preemption_is_a_prefill_with_one_sample() -> None:
    # Both grow in lockstep; the fourth page of the earlier one is the last of the pool, so the later one is out at
    # 3 + 10 tokens.
    run = Run(budget=4, seqs=2, page=4, pages=7)
    early, late = run.add("early", 3, 13), run.add("late", 3, 12)
    while late.status is not Status.PREEMPTED:
        run.step()
    assert len(late.output_token_ids) == 10
    while early.status is Status.RUNNING:
        run.step()
    steps = run.drain()
    assert steps[:4] == [
        [("late", 4, False, False)],
        [("late", 4, False, False)],
        [("late", 4, False, False)],
        [("late", 1, False, True)],
    ]
    assert late.num_preemptions == 1
    assert late.output_token_ids == expected(late)
    assert len(late.output_token_ids) == 12


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    run = Run(budget=8, seqs=2, page=4, pages=7)
    run.add("early", 3, 13)
    run.add("late", 3, 12)
    run.step()
    run.add("tiny", 1, 1, arrival_time=-1.0)  # the first in line; there is only no place for it
    while not run.batches[-1].preempted:
        run.step()
    assert [chunk.request.request_id for chunk in run.batches[-1].chunks] == ["early"]
    assert ("tiny", 1, False, True) in run.step()
    run.drain()


def test_a_victim_keeps_its_place_in_line() -> None:
    run = Run(budget=8, seqs=2, page=4, pages=7)
    early, late = run.add("early", 3, 13), run.add("late", 3, 12)
    run.step()
    run.add("later", 3, 1)
    while late.status is not Status.PREEMPTED:
        run.step()
    assert [request.request_id for request in run.scheduler.waiting] == ["late", "later"]
    run.drain()
    assert (early.output_token_ids, late.output_token_ids) == (expected(early), expected(late))


def test_the_head_of_the_line_keeps_its_place() -> None:
    run = Run(budget=32, seqs=3, page=4, pages=8)
    run.add("running", 16, 4)
    run.step()
    run.add("large", 20, 1)
    run.add("small", 2, 1)
    assert [name for name, *_ in run.step()] == ["running"]
    run.drain()


def test_one_token_chunk_at_the_end_of_a_prompt_is_a_prefill() -> None:
    run = Run(budget=8)
    run.add("chat", 2, 5)
    run.step()
    run.add("long", 8, 1)
    assert run.step() == [("chat", 1, True, True), ("long", 7, False, False)]
    assert run.step() == [("chat", 1, True, True), ("long", 1, False, True)]


def test_watermark_keeps_pages_free_only_while_others_run() -> None:
    run = Run(budget=16, page=4, pages=8, watermark=0.5)
    run.add("all of it", 32, 1)
    run.drain()
    run.add("half", 12, 3)
    run.add("other", 8, 1)
    assert [name for name, *_ in run.step()] == ["half"]
    assert [[name for name, *_ in step] for step in run.drain()] == [["half"], ["half"], ["other"]]


@pytest.mark.parametrize("when", ["before", "in flight", "after"])
def test_abort_gives_back_pages_and_emits_nothing(when: str) -> None:
    run = Run(budget=16)
    request = run.add("a", 40, 4)
    run.step()
    if when == "before":
        run.scheduler.abort("a")
    else:
        run.step()
        batch = run.scheduler.schedule()
        if when == "in flight":
            run.scheduler.abort("a")
            result = run.model(batch)  # the step runs on with the pages it was given
        else:
            result = run.model(batch)
            run.scheduler.abort("a")
        assert run.scheduler.update(batch, result) == []
    assert request.status is Status.FINISHED_ABORTED
    assert request.output_token_ids == []
    assert len(run.scheduler.pool) == 64
    assert not run.scheduler.has_work
    run.scheduler.abort("a")
    run.scheduler.abort("never seen")
    assert run.add("a", 3, 1).status is Status.WAITING  # the id is free again


def test_end_token_stops_a_request() -> None:
    run = Run(budget=16)
    free = run.add("a", 5, 30)
    run.drain()
    stop = free.output_token_ids[4]
    first = free.output_token_ids.index(stop)
    again = Request("a", free.prompt_token_ids, 30, frozenset({stop}))
    run.scheduler.add_request(again)
    run.drain()
    assert again.status is Status.FINISHED_STOPPED
    assert again.output_token_ids == free.output_token_ids[: first + 1]


def test_schedule_and_update_alternate() -> None:
    run = Run(budget=16)
    run.add("a", 5, 2)
    batch = run.scheduler.schedule()
    with pytest.raises(RuntimeError, match="update"):
        run.scheduler.schedule()
    with pytest.raises(ValueError, match="sampled: expected a token for request 'a', got none"):
        run.scheduler.update(batch, {})
    run.scheduler.update(batch, {"a": 1})
    with pytest.raises(RuntimeError, match="batch"):
        run.scheduler.update(batch, {"a": 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_budget": 3}, r"token_budget: expected at least max_num_seqs \(4\)"),
        ({"page_size": 0}, "page_size: expected at least 1, got 0"),
        ({"num_pages": 0}, "num_pages: expected at least 1, got 0"),
        ({"max_num_seqs": 0}, "max_num_seqs: expected at least 1, got 0"),
        ({"chunk_alignment": 0}, "chunk_alignment: expected at least 1, got 0"),
        ({"sjf_aging": math.nan}, "sjf_aging: expected at least 0, got nan"),
        ({"sjf_aging": math.inf}, "sjf_aging: expected at least 0, got inf"),
        ({"fair_weights": (math.nan, 1.0)}, "fair_weights: expected two positive costs"),
        ({"fair_weights": (1.0, math.nan)}, "fair_weights: expected two positive costs"),
        ({"watermark": 1.0}, r"watermark: expected a share in \[0, 1\), got 1.0"),
    ],
)
def test_config_refuses(change: dict[str, float], message: str) -> None:
    good = {"token_budget": 8, "max_num_seqs": 4, "page_size": 16, "num_pages": 8}
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**(good | change))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("a", [], 1), "prompt_token_ids: expected at least one token"),
        (Request("a", [1], 0), "max_tokens: expected at least 1, got 0"),
        (Request("old", [1], 1), "request_id: expected an unused id, got 'old' again"),
    ],
)
def test_add_request_refuses(request_: Request, message: str) -> None:
    run = Run(budget=16)
    run.add("old", 3, 1)
    with pytest.raises(ValueError, match=message):
        run.scheduler.add_request(request_)


def test_slots_needed_leaves_out_the_last_sampled_token() -> None:
    assert slots_needed(10, 1) == 10
    assert slots_needed(10, 5) == 14


def test_pool_refuses_what_is_not_in_use() -> None:
    pool = Run(budget=16, pages=4).scheduler.pool
    first, second = pool.alloc(2)
    pool.release([first])
    for pages in ([first], [4], [-1], [second, second]):
        with pytest.raises(ValueError, match="pages: expected"):
            pool.release(pages)
    assert len(pool) == 3
    with pytest.raises(ValueError, match="count: expected at most 3"):
        pool.alloc(4)


def test_pages_go_out_in_the_order_of_their_worth() -> None:
    """Given back without content, the last first; then those never used; then what is remembered, the oldest first."""
    pool = PagePool(6, 1)
    assert pool.alloc(4) == [0, 1, 2, 3]
    for page in (3, 1):
        pool.commit(page, (bytes([page]), b""), ())
    pool.release([3])
    pool.release([2, 1, 0])
    assert len(pool) == 6
    assert pool.alloc(6) == [2, 0, 4, 5, 3, 1]


def test_a_pool_costs_what_is_used_of_it() -> None:
    tracemalloc.start()
    try:
        assert len(PagePool(1_000_000, 16).alloc(10)) == 10
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()

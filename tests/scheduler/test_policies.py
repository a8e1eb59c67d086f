"""Who goes first, who is preempted, and what a cap on long prompts does."""

from __future__ import annotations

import pytest
from hash_model import expected
from hash_run import HashRun

from chunkattn.scheduler import Status

POLICIES = ("fcfs", "sjf", "fair")


def order_of_first_tokens(run: HashRun) -> list[str]:
    seen: list[str] = []
    for step in run.drain():
        seen += [name for name, _, is_decode, samples in step if samples and not is_decode and name not in seen]
    return seen


def test_first_come_first_served_goes_by_arrival() -> None:
    run = HashRun(budget=8, seqs=1)
    for name, arrival in (("late", 2.0), ("early", 1.0), ("latest", 3.0)):
        run.add(name, 8, 2, arrival_time=arrival)
    assert order_of_first_tokens(run) == ["early", "late", "latest"]


def test_shortest_prompt_goes_first() -> None:
    run = HashRun(budget=16, seqs=1, policy="sjf")
    for name, length in (("long", 40), ("short", 3), ("middle", 20)):
        run.add(name, length, 1)
    assert order_of_first_tokens(run) == ["short", "middle", "long"]


@pytest.mark.parametrize(("aging", "overtakers"), [(0.0, 20), (1.0, 4), (1e6, 0)])
def test_ageing_bounds_how_often_a_long_prompt_is_overtaken(aging: float, overtakers: int) -> None:
    # A new prompt of 10 tokens arrives with every step, a step serves 10 tokens.
    run = HashRun(budget=10, seqs=1, page=4, pages=64, policy="sjf", sjf_aging=aging)
    run.add("busy", 10, 1)
    long = run.add("long", 50, 1)
    before = 0
    for i in range(20):
        run.step()
        if long.output_token_ids or long.status is Status.RUNNING:
            break
        before += 1
        run.add(f"short {i:02d}", 10, 1)
    run.drain()
    assert before == pytest.approx(overtakers, abs=1)
    assert long.output_token_ids == expected(long)


def test_client_with_less_service_goes_first() -> None:
    run = HashRun(budget=10, seqs=1, policy="fair")
    for i in range(4):
        run.add(f"greedy{i}", 10, 1, client_id="greedy")
    run.add("modest", 10, 1, client_id="modest")
    # The first of the greedy ones is served, then the client that has had nothing.
    assert order_of_first_tokens(run) == ["greedy0", "modest", "greedy1", "greedy2", "greedy3"]


def test_service_of_backlogged_clients_stays_close() -> None:
    weights = (1.0, 2.0)
    run = HashRun(budget=16, seqs=4, policy="fair", fair_weights=weights, page=8, pages=200)
    for i in range(12):
        run.add(f"a{i}", 30, 4, client_id="a")
        run.add(f"b{i}", 3, 8, client_id="b")
    service = dict.fromkeys("ab", 0.0)
    while {r.client_id for r in run.scheduler.waiting} == {"a", "b"}:
        batch = run.scheduler.schedule()
        run.scheduler.update(batch, run.model(batch))
        for chunk in batch.chunks:
            service[chunk.request.client_id] += chunk.num_tokens * weights[chunk.is_decode]
        # Sheng et al., theorem 4.4: 2 max(w_p L_input, w_q M), M = tokens of a batch.
        assert abs(service["a"] - service["b"]) <= 2 * max(weights[0] * 30, weights[1] * 16)
    run.drain()


def test_client_that_was_away_has_saved_up_nothing() -> None:
    run = HashRun(budget=8, seqs=1, policy="fair")
    for i in range(3):
        run.add(f"old{i}", 8, 1, client_id="old")
    run.step()
    run.step()
    for i in range(3):
        run.add(f"new{i}", 8, 1, client_id="new")
    assert order_of_first_tokens(run) == ["old2", "new0", "new1", "new2"]


def test_recomputed_tokens_are_charged_to_nobody() -> None:
    run = HashRun(budget=8, seqs=2, page=4, pages=7, policy="fair", fair_weights=(1.0, 1.0))
    requests = [run.add("early", 3, 13, client_id="a"), run.add("late", 3, 12, client_id="b")]
    run.drain()
    assert sum(request.num_preemptions for request in requests) >= 1
    policy = run.scheduler._policy
    assert policy._counters == {"a": 15.0, "b": 14.0}  # prompt + outputs - the last, once
    assert run.scheduler.num_recomputed_tokens == run.scheduler.num_served_tokens - 29


@pytest.mark.parametrize("policy", POLICIES)
def test_the_last_in_policy_order_is_preempted(policy: str) -> None:
    run = HashRun(budget=8, seqs=3, page=4, pages=8, policy=policy, sjf_aging=0.0)
    requests = [run.add(name, 7 if name == "long" else 3, 12) for name in ("a", "long", "c")]
    preempted = []
    while run.scheduler.has_work:
        batch = run.scheduler.schedule()
        for victim in batch.preempted:
            assert all(victim.key > chunk.request.key for chunk in batch.chunks)
            preempted.append(victim.request_id)
        run.scheduler.update(batch, run.model(batch))
    assert preempted
    assert preempted[0] == ("long" if policy == "sjf" else "c")
    assert all(request.output_token_ids == expected(request) for request in requests)


@pytest.mark.parametrize("policy", POLICIES)
def test_two_prompts_that_fill_the_pool_finish(policy: str) -> None:
    run = HashRun(budget=16, page=16, pages=6, policy=policy)
    first, second = run.add("first", 64, 1), run.add("second", 64, 1)
    assert len(run.drain()) <= 16
    assert first.num_preemptions + second.num_preemptions <= 2


def test_cap_lets_a_short_prompt_pass_a_long_one() -> None:
    run = HashRun(budget=32, long_prefill_token_threshold=8)
    run.add("long", 200, 1)
    run.add("short", 10, 1)
    first = run.step()
    assert ("short", 10, False, True) in first
    # What the short one left goes back to the long one: the step is full.
    assert first[0] == ("long", 22, False, False)
    run.drain()


def test_cap_is_no_smaller_than_an_even_share() -> None:
    run = HashRun(budget=32, long_prefill_token_threshold=4)
    run.add("a", 100, 1)
    run.add("bb", 100, 1)
    assert run.step() == [("a", 16, False, False), ("bb", 16, False, False)]


def test_cap_is_no_smaller_than_an_even_share_of_three() -> None:
    run = HashRun(budget=32, long_prefill_token_threshold=4)
    for name in ("a", "bb", "ccc"):
        run.add(name, 100, 1)
    # A third each; the two tokens that are over go to the first.
    assert run.step() == [("a", 12, False, False), ("bb", 10, False, False), ("ccc", 10, False, False)]


def test_cap_does_not_apply_to_a_lone_prompt() -> None:
    run = HashRun(budget=32, long_prefill_token_threshold=4)
    run.add("a", 60, 1)
    assert [step[0][1] for step in run.drain()] == [32, 28]


def test_handed_back_tokens_keep_the_alignment() -> None:
    run = HashRun(budget=30, long_prefill_token_threshold=8, chunk_alignment=8)
    run.add("long", 200, 1)
    run.add("short", 5, 1)
    assert run.step() == [("long", 24, False, False), ("short", 5, False, True)]


def test_prefill_first_lets_decodes_wait() -> None:
    run = HashRun(budget=8, prefill_first=True)
    run.add("chat", 4, 5)
    run.step()
    run.add("long", 20, 1)
    assert run.drain()[:4] == [
        [("long", 8, False, False)],
        [("long", 8, False, False)],
        [("long", 4, False, True)],
        [("chat", 1, True, True)],
    ]


def test_reserving_the_answer_preempts_nobody() -> None:
    for reserve, preemptions in ((False, 1), (True, 0)):
        run = HashRun(budget=8, seqs=2, page=4, pages=7, reserve_max_tokens=reserve)
        requests = [run.add("early", 3, 13), run.add("late", 3, 12)]
        run.drain()
        assert sum(request.num_preemptions for request in requests) == preemptions
        assert all(request.output_token_ids == expected(request) for request in requests)

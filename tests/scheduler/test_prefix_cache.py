"""What is shared, what never is, and what is forgotten first."""

from __future__ import annotations

import pytest
from hash_model import expected
from hash_run import HashRun, check_pool

from chunkattn.scheduler import Status
from chunkattn.scheduler.pages import chain_hash


def cached_run(**options: object) -> HashRun:
    return HashRun(**{"budget": 64, "enable_prefix_caching": True, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "hit"), [(31, 16), (32, 16), (33, 32)])
def test_full_hit_still_computes_the_last_token(length: int, hit: int) -> None:
    run = cached_run()
    prompt = list(range(length))
    first = run.add("first", prompt, 1)
    run.drain()
    second = run.add("second", prompt, 1)
    assert run.drain() == [[("second", length - hit, False, True)]]
    assert second.num_cached_tokens == hit
    assert second.output_token_ids == first.output_token_ids == expected(second)


def test_a_longer_prompt_finds_a_continued_one() -> None:
    run = cached_run()
    prompt = [i % 50 for i in range(32)]
    run.add("first", prompt, 1)
    run.drain()
    again = run.add("again", prompt + run.batches[0].chunks[0].request.output_token_ids, 1)
    run.drain()
    assert again.num_cached_tokens == 32
    longer = run.add("longer", [*prompt, *again.prompt_token_ids[32:], *range(15)], 1)
    run.drain()
    assert longer.num_cached_tokens == 32  # the third page was never full
    assert longer.output_token_ids == expected(longer)


def test_outputs_are_found_as_well() -> None:
    run = cached_run()
    first = run.add("first", 10, 30)
    run.drain()
    turn = run.add("second turn", [*first.prompt_token_ids, *first.output_token_ids, 1, 2, 3], 2)
    run.drain()
    assert turn.num_cached_tokens == 32  # 39 of 40 tokens had keys and values
    assert turn.output_token_ids == expected(turn)


def test_shared_pages_are_released_once_each() -> None:
    run = cached_run(budget=32, seqs=4)
    common = [i * 3 % 50 for i in range(32)]
    one = run.add("a", common + [1] * 20, 2)
    two = run.add("bb", common + [2] * 20, 8)
    while one.status is not Status.FINISHED_LENGTH:
        run.step()
        check_pool(run.scheduler)
    assert two.block_table[:2] == run.batches[0].chunks[0].block_table[:2]
    run.scheduler.abort("bb")
    run.scheduler.abort("bb")
    check_pool(run.scheduler)
    assert len(run.scheduler.pool) == 64


def test_prompts_that_part_inside_a_page_share_only_what_is_equal() -> None:
    run = cached_run()
    one = run.add("a", [5] * 20 + [1] * 20, 5)
    run.step()
    other = run.add("b", [5] * 20 + [2] * 20, 1)
    batch = run.scheduler.schedule()
    assert other.num_cached_tokens == 16
    assert one.block_table[0] == other.block_table[0]
    assert not set(one.block_table[1:]) & set(other.block_table[1:])
    run.scheduler.update(batch, run.model(batch))
    assert other.output_token_ids == expected(other)


def test_a_page_that_is_handed_out_again_is_forgotten() -> None:
    run = cached_run(pages=4)
    prompt = list(range(48))
    run.add("a", prompt, 1)
    run.drain()
    run.add("b", [9] * 60, 1)  # takes all four
    run.drain()
    again = run.add("c", prompt, 1)
    run.drain()
    assert again.num_cached_tokens == 0
    assert again.output_token_ids == expected(again)


def test_the_end_of_a_chain_is_forgotten_first() -> None:
    run = cached_run(pages=3)
    prompt = list(range(48))
    run.add("a", prompt, 1)
    run.drain()
    run.add("b", [7] * 16, 1)  # takes one page
    run.drain()
    again = run.add("c", prompt, 1)
    run.drain()
    assert again.num_cached_tokens == 32
    assert again.output_token_ids == expected(again)


def test_a_match_stops_at_the_first_missing_page() -> None:
    run = cached_run(pages=8)
    prompt = list(range(49))
    request = run.add("a", prompt, 1)
    run.step()
    pool = run.scheduler.pool
    pool._forget(run.batches[0].chunks[0].block_table[0])  # the first of three
    assert pool.match(request.page_keys) == []
    again = run.add("b", prompt, 1)
    run.drain()
    assert again.num_cached_tokens == 0
    third = run.add("c", prompt, 1)
    run.drain()
    assert third.num_cached_tokens == 48  # pages cut off by the eviction were replaced


@pytest.mark.parametrize("prompts", [([1] * 33, [2] * 33)])
def test_equal_hashes_of_different_tokens_share_nothing(prompts: tuple[list[int], list[int]]) -> None:
    run = cached_run()
    run.scheduler.pool.hash_page = lambda parent, tokens: b"constant"
    one, two = (run.add(name, prompt, 3) for name, prompt in zip("ab", prompts, strict=True))
    run.drain()
    assert two.num_cached_tokens == 0
    assert (one.output_token_ids, two.output_token_ids) == (expected(one), expected(two))


def test_equal_pages_after_different_beginnings_share_nothing() -> None:
    for hash_page in (chain_hash, lambda parent, tokens: tokens):
        run = cached_run()
        run.scheduler.pool.hash_page = hash_page
        run.add("a", [1] * 16 + [3] * 17, 1)
        run.drain()
        other = run.add("b", [2] * 16 + [3] * 17, 1)
        third = run.add("c", [3] * 17, 1)
        run.drain()
        assert (other.num_cached_tokens, third.num_cached_tokens) == (0, 0)
        assert other.output_token_ids == expected(other)


def test_equal_pages_of_one_prompt_are_told_apart() -> None:
    run = cached_run()
    for name in "ab":
        request = run.add(name, [4] * 65, 1)
        run.drain()
    assert request.num_cached_tokens == 64


def test_nothing_is_found_behind_a_collision() -> None:
    # The hash sees a page's last token only: the first pages collide, the second ones do not.
    run = cached_run()
    run.scheduler.pool.hash_page = lambda parent, tokens: tokens[-8:]
    for name, first, second in (("a", 1, 6), ("b", 2, 7)):
        run.add(name, [first] * 15 + [5] + [second] * 20, 1)
        run.drain()
    mixed = run.add("c", [1] * 15 + [5] + [7] * 20, 1)
    run.drain()
    assert mixed.num_cached_tokens == 16
    assert mixed.output_token_ids == expected(mixed)


def test_adapter_and_salt_of_one_name_share_nothing() -> None:
    run = cached_run()
    requests = [
        run.add(name, [4] * 33, 1, extra_keys=extra)
        for name, extra in (("none", ()), ("adapter", (("adapter", "X"),)), ("salt", (("salt", "X"),)))
    ]
    run.drain()
    assert [request.num_cached_tokens for request in requests] == [0, 0, 0]
    again = run.add("again", [4] * 33, 1, extra_keys=(("salt", "X"),))
    run.drain()
    assert again.num_cached_tokens == 32


def test_requests_with_one_beginning_wait_for_it_instead_of_computing_it_again() -> None:
    common = [i % 50 for i in range(48)]
    run = cached_run(budget=512)
    requests = [run.add(f"r{i}", [*common, i, i], 1) for i in range(4)]
    assert [[name for name, *_ in step] for step in run.drain()] == [["r0"], ["r1", "r2", "r3"]]
    assert [request.num_cached_tokens for request in requests] == [0, 48, 48, 48]
    assert sum(batch.num_tokens for batch in run.batches) == 50 + 3 * 2
    assert all(request.output_token_ids == expected(request) for request in requests)


def test_waiting_for_a_page_holds_up_nobody_else() -> None:
    run = cached_run(budget=40)
    common = [i % 50 for i in range(32)]
    run.add("first", [*common, 1], 1)
    run.add("twin", [*common, 2], 1)
    run.add("other", [8] * 4, 1)
    assert [[name for name, *_ in step] for step in run.drain()] == [["first", "other"], ["twin"]]


def test_pages_computed_for_an_aborted_step_are_not_found() -> None:
    run = cached_run()
    run.add("a", [3] * 40, 2)
    batch = run.scheduler.schedule()
    result = run.model(batch)
    run.scheduler.abort("a")
    run.scheduler.update(batch, result)
    again = run.add("b", [3] * 40, 1)
    run.drain()
    assert again.num_cached_tokens == 0


def test_pages_are_found_only_after_their_step() -> None:
    run = cached_run(budget=16)
    request = run.add("a", list(range(40)), 1)
    for computed in (16, 32):
        run.step()
        assert len(run.scheduler.pool.match(request.page_keys)) == computed // 16
    run.drain()


def test_hit_pages_that_nobody_holds_count_as_taken() -> None:
    # Four pages of five are cached and free; a second request that hits two of them needs two more beside the decode.
    run = cached_run(budget=64, pages=5, page=4, seqs=3)
    prompt = list(range(16))
    run.add("a", prompt, 1)
    run.drain()
    run.add("long", [9] * 3, 9)
    run.step()
    run.step()
    hit = run.add("hit", prompt[:8] + [1] * 12, 1)
    while run.scheduler.has_work:
        run.step()
        check_pool(run.scheduler)
    assert hit.output_token_ids == expected(hit)


def test_a_hit_survives_the_allocation_beside_it() -> None:
    # The pages of the hit are the oldest free ones: whoever allocates first would take them.
    run = cached_run(page=4, pages=6)
    prompt = list(range(12))
    run.add("a", prompt, 1)
    run.drain()
    run.add("b", [9] * 12, 1)
    run.drain()
    again = run.add("c", [*prompt, *range(10)], 1)
    run.drain()
    assert again.num_cached_tokens == 12
    assert again.output_token_ids == expected(again)


def test_resumed_request_finds_its_own_pages() -> None:
    run = cached_run(budget=16, page=4, pages=9, seqs=2)
    early, late = run.add("early", 9, 20), run.add("late", 8, 12)
    run.drain()
    assert late.num_preemptions >= 1
    assert late.num_cached_tokens > 0
    assert (early.output_token_ids, late.output_token_ids) == (expected(early), expected(late))


def test_switched_off_nothing_is_shared() -> None:
    run = HashRun(budget=64, enable_prefix_caching=False)
    requests = [run.add(name, list(range(40)), 1) for name in "ab"]
    run.drain()
    assert [request.num_cached_tokens for request in requests] == [0, 0]

"""A request whose prompt was computed elsewhere starts as a decode."""

from __future__ import annotations

import pytest
from hash_model import expected, next_token
from hash_run import HashRun

from chunkattn.scheduler import Request


def handed_over(run: HashRun, name: str, prompt: list[int], max_tokens: int) -> Request:
    return run.add(name, prompt, max_tokens, output_token_ids=[next_token(prompt)], num_external_tokens=len(prompt))


def write_pages(run: HashRun, request: Request) -> None:
    for position, token in enumerate(request.prompt_token_ids):
        page = request.block_table[position // run.model.page_size]
        slot = page * run.model.page_size + position % run.model.page_size
        run.model.cache[slot] = (token, position, request.extra_keys)


def test_handed_over_request_decodes_from_its_first_step() -> None:
    run = HashRun(budget=4, page=4)
    request = handed_over(run, "a", list(range(10)), 6)
    batch = run.scheduler.schedule()
    assert [(c.start, c.num_tokens, c.is_decode, c.samples) for c in batch.chunks] == [(10, 1, True, True)]
    write_pages(run, request)
    run.scheduler.update(batch, run.model(batch))
    run.drain()
    assert request.output_token_ids == expected(request)


def test_handed_over_request_recomputes_its_prompt_after_a_preemption() -> None:
    run = HashRun(budget=8, seqs=2, page=4, pages=7)
    requests = [handed_over(run, name, [first, 1, 4], 13) for first, name in enumerate("ab")]
    batch = run.scheduler.schedule()
    for request in requests:
        write_pages(run, request)
    run.scheduler.update(batch, run.model(batch))
    run.drain()
    assert sum(request.num_preemptions for request in requests) >= 1
    assert all(request.output_token_ids == expected(request) for request in requests)


@pytest.mark.parametrize("external", [-1, 3, 4])
def test_more_than_the_known_tokens_is_refused(external: int) -> None:
    run = HashRun(budget=4)
    with pytest.raises(ValueError, match="num_external_tokens: expected less than the 3 known tokens"):
        run.add("a", [1, 2, 3], 2, num_external_tokens=external)

"""Guesses: where room for them comes from, what is kept of them, and that the answer does not change."""

from __future__ import annotations

import pytest
import torch
from hash_model import expected
from hash_run import HashRun

from chunkattn.scheduler import Request, Scheduler, SchedulerConfig
from chunkattn.serving import Draft, NgramDrafter, StepMetadata


def test_right_guesses_give_several_tokens_a_step() -> None:
    run = HashRun(budget=16, num_draft_tokens=4)
    request = run.add("a", 5, 40)
    steps = run.drain()
    assert request.output_token_ids == expected(request)
    assert run.model.num_accepted > 10
    assert len(steps) == 40 - run.model.num_accepted


def test_guesses_take_only_budget_that_nobody_wants() -> None:
    run = HashRun(budget=8, num_draft_tokens=4)
    chat = run.add("chat", 3, 30)
    run.step()
    long = run.add("long", 20, 1)
    run.drain()
    with_prompt = [b for b in run.batches if any(c.request is long for c in b.chunks)]
    full = [b for b in with_prompt if sum(c.num_tokens for c in b.chunks) == 8]
    assert len(full) == 2
    assert all(chunk.num_drafts == 0 for b in full for chunk in b.chunks)
    assert [c.num_drafts for b in with_prompt[2:] for c in b.chunks] == [1, 0]  # one of eight is left
    assert max(b.num_tokens for b in run.batches) <= 8
    assert chat.output_token_ids == expected(chat)


@pytest.mark.parametrize("pages", [4, 9])
def test_guesses_take_only_pages_that_are_free_and_stay_within_max_tokens(pages: int) -> None:
    run = HashRun(budget=16, num_draft_tokens=6, page=4, pages=pages)
    request = run.add("a", 10, 7)  # 16 slots: every page
    run.drain()
    assert request.output_token_ids == expected(request)
    assert request.num_preemptions == 0
    assert all(len(c.block_table) <= 4 for b in run.batches for c in b.chunks)


def test_guesses_end_at_an_end_token() -> None:
    for first in range(10):
        answer = expected(Request("a", [first, 2, 3], 30))
        stop = answer[4]
        run = HashRun(budget=16, num_draft_tokens=6)
        request = run.add("a", [first, 2, 3], 30, eos_token_ids=frozenset({stop}))
        run.drain()
        assert request.output_token_ids == answer[: answer.index(stop) + 1]


@pytest.mark.parametrize(
    ("tokens", "limit", "guess"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 2, (9, 1)),  # what followed 1 2 3
        ([5, 3, 8, 1, 3, 7, 3], 1, (7,)),  # the latest place
        ([1, 2, 3, 4], 3, ()),  # nothing said twice
        ([7, 7], 3, (7,)),
        ([1, 2, 1, 2], 0, ()),
    ],
)
def test_ngram_drafter_continues_the_latest_longest_match(tokens: list[int], limit: int, guess: tuple[int]) -> None:
    draft = NgramDrafter().propose(tokens, limit)
    assert draft.tokens == guess
    assert not draft.branches


def test_two_earlier_places_make_a_tree() -> None:
    tokens = [1, 2, 3, 5, 0, 1, 2, 4, 6, 0, 1, 2]
    draft = NgramDrafter(longest=2, branches=2).propose(tokens, 4)
    assert draft.tokens == (4, 6, 3, 5)
    assert draft.parents == (-1, 0, -1, 2)
    assert draft.depths == (1, 2, 1, 2)
    assert draft.branches
    assert draft.accepted([3, 0, 0, 5, 9]) == [2, 3]
    assert draft.accepted([4, 1, 0, 0, 0]) == [0]
    assert draft.accepted([8, 0, 0, 0, 0]) == []


def test_branches_that_begin_alike_share_their_beginning() -> None:
    tokens = [1, 2, 8, 3, 0, 1, 2, 8, 4, 0, 1, 2]
    draft = NgramDrafter(longest=2, branches=2).propose(tokens, 6)
    assert draft.tokens[:2] == (8, 4)
    assert draft.tokens.count(8) == 1
    assert 3 in draft.tokens


def test_tensors_of_a_step_with_a_tree() -> None:
    scheduler = Scheduler(SchedulerConfig(16, 2, 4, 16, num_draft_tokens=4))
    scheduler.add_request(Request("a", [1, 2, 3], 10))
    batch = scheduler.schedule()
    scheduler.update(batch, {"a": 7})
    scheduler.add_request(Request("b", [4, 5, 6], 2))
    batch = scheduler.schedule()
    step = StepMetadata.of(batch, 4, drafts={"a": Draft((8, 9, 6), (-1, 0, -1))})
    assert step.input_ids.tolist() == [7, 8, 9, 6, 4, 5, 6]
    assert step.positions.tolist() == [3, 4, 5, 4, 0, 1, 2]
    pages = batch.chunks[0].block_table
    assert step.slot_mapping.tolist()[:4] == [pages[0] * 4 + 3, pages[1] * 4, pages[1] * 4 + 1, pages[1] * 4 + 2]
    assert step.attention.seq_lens.tolist() == [7, 3]
    assert step.logits_indices.tolist() == [0, 1, 2, 3, 6]
    assert step.tree_mask is not None
    seen = torch.tensor([[row >> j & 1 for j in range(4)] for row in step.tree_mask[:, 0].tolist()])
    assert seen[1:4].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]
    assert step.tree_mask[4:].tolist() == [[-1]] * 3

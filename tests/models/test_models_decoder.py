"""The decoder gives the logits that transformers gives, however the prompt is cut and the pages are placed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoint import TINY_LLAMA, formula_tokens, llama_shapes, write_checkpoint

from chunkattn.models import Decoder, hf_directory
from chunkattn.scheduler import Request, Scheduler, SchedulerConfig
from chunkattn.serving import Engine, ModelExecutor
from chunkattn.types import Batch

RECORDED = json.loads((Path(__file__).parent / "data" / "transformers.json").read_text())
PAGE_SIZE = 4
NUM_PAGES = 40


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    config = hf_directory.read_config(directory)
    return Decoder(config, hf_directory.read_weights(directory, config, dtype=dtype, device="cpu"))


def run(decoder: Decoder, tokens: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    """[len(tokens), vocab] logits of one request whose tokens come in chunks of the given lengths."""
    cache = decoder.allocate_cache(NUM_PAGES, PAGE_SIZE)
    pages = torch.randperm(NUM_PAGES, generator=torch.Generator().manual_seed(0)).tolist()
    logits, start = [], 0
    for length in cuts:
        batch = Batch.from_lists([length], [start + length], [pages])
        chunk = tokens[start : start + length]
        logits.append(decoder.forward(chunk, batch, cache, torch.arange(length)))
        start += length
    assert start == len(tokens)
    return torch.cat(logits)


@pytest.mark.parametrize("cuts", [[90], [17, 1, 30, 1, 1, 40]], ids=["whole", "chunked"])
@pytest.mark.parametrize("case", list(RECORDED["cases"]))
def test_logits_equal_transformers(case: str, cuts: list[int], tmp_path: Path) -> None:
    recorded = RECORDED["cases"][case]
    write_checkpoint(tmp_path, recorded["config"], recorded["shapes"], shards=3 if case == "llama" else 1)
    decoder = load(tmp_path)
    tokens = formula_tokens(RECORDED["num_tokens"], decoder.config.vocab_size)
    logits = run(decoder, tokens, cuts)[RECORDED["rows"]]
    expected = torch.tensor(recorded["logits"], dtype=torch.float64)
    error = (logits.double() - expected).norm(dim=1) / expected.norm(dim=1)
    assert error.max() < 1e-5  # fp32 through three layers against double


def test_requests_of_a_step_do_not_see_each_other(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY_LLAMA, llama_shapes(TINY_LLAMA))
    decoder = load(tmp_path)
    tokens = formula_tokens(30, 64)
    alone = [run(decoder, tokens[:20], [20]), run(decoder, tokens[20:], [10])]
    cache = decoder.allocate_cache(NUM_PAGES, PAGE_SIZE)
    pages = [[5, 3, 9, 2, 7], [1, 8, 4]]
    first = Batch.from_lists([19, 7], [19, 7], pages)
    decoder.forward(torch.cat([tokens[:19], tokens[20:27]]), first, cache, torch.tensor([18]))
    second = Batch.from_lists([1, 3], [20, 10], pages)
    logits = decoder.forward(torch.cat([tokens[19:20], tokens[27:]]), second, cache, torch.tensor([0, 3]))
    torch.testing.assert_close(logits[0], alone[0][19], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits[1], alone[1][9], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("budget", "num_pages"), [(None, 40), (16, 40), (5, 40), (16, 14), (3, 14)])
def test_generation_equals_recomputing_everything(budget: int | None, num_pages: int, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY_LLAMA, llama_shapes(TINY_LLAMA))
    decoder = load(tmp_path)
    prompts = [formula_tokens(length, 64).tolist() for length in (21, 2, 13)]
    config = SchedulerConfig(token_budget=budget, max_num_seqs=3, page_size=PAGE_SIZE, num_pages=num_pages)
    executor = ModelExecutor(decoder, num_pages=num_pages, page_size=PAGE_SIZE)
    engine = Engine(Scheduler(config), executor)
    requests = [Request(str(i), prompt, 15) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.add_request(request)
    engine.run()
    assert (num_pages == 14) == any(request.num_preemptions for request in requests)
    assert executor.least_margin > 1e-4  # rounding cannot decide
    for prompt, request in zip(prompts, requests, strict=True):
        tokens = list(prompt)
        for _ in range(15):
            tokens.append(int(run(decoder, torch.tensor(tokens), [len(tokens)])[-1].argmax()))
        assert request.output_token_ids == tokens[len(prompt) :]


def test_bf16_follows_fp32(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY_LLAMA, llama_shapes(TINY_LLAMA))
    tokens = formula_tokens(40, 64)
    exact, rounded = (run(load(tmp_path, dtype), tokens, [25, 15]) for dtype in (torch.float32, torch.bfloat16))
    error = (rounded - exact).norm(dim=1) / exact.norm(dim=1)
    assert 0 < error.max() < 0.05  # two layers of bf16 rounding, 2^-9 each operation


def test_only_wanted_rows_get_logits(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY_LLAMA, llama_shapes(TINY_LLAMA))
    decoder = load(tmp_path)
    batch = Batch.from_lists([6], [6], [[0, 1]])
    cache = decoder.allocate_cache(2, PAGE_SIZE)
    assert decoder.forward(formula_tokens(6, 64), batch, cache, torch.empty(0, dtype=torch.int64)).shape == (
        0,
        64,
    )


def test_a_reused_page_does_not_leak(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY_LLAMA, llama_shapes(TINY_LLAMA))
    decoder = load(tmp_path)
    tokens = formula_tokens(12, 64)
    results = []
    for poison in (0.0, float("nan")):
        cache = decoder.allocate_cache(4, PAGE_SIZE)
        for pool in cache:
            pool.k_cache.fill_(poison)
            pool.v_cache.fill_(poison)
        batch = Batch.from_lists([6], [6], [[2, 1]])
        results.append(decoder.forward(tokens[:6], batch, cache, torch.arange(6)))
    assert torch.equal(results[0], results[1])

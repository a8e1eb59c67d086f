"""A vLLM server on loopback answers with chunkattn what it answers with its own attention; skipped without vLLM."""

from __future__ import annotations

import concurrent.futures
import time

import pytest
import torch

from chunkattn.compat.vllm import plugin

vllm = pytest.importorskip("vllm", reason="vLLM is not installed")
if plugin.VERSIONS.problem(vllm.__version__):
    pytest.skip(plugin.VERSIONS.problem(vllm.__version__), allow_module_level=True)

from vllm_server import Server  # noqa: E402

BUDGET = 128
# Long and short prompts at once, most longer than a step's budget; the last two share the beginning of the longest.
LENGTHS = [900, 3, 40, 517, 1, 130, 75, 300, 12, 640]
ANSWER = 16


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(100, 40_000, (n,), generator=generator).tolist() for n in LENGTHS]
    return [*drawn, [*drawn[0][:800], 77, 78], drawn[0][:512]]


def answers(server, model, load):
    """Tokens of every prompt; requests arrive a little after each other and run side by side."""
    with concurrent.futures.ThreadPoolExecutor(len(load)) as pool:
        waiting = []
        for prompt in load:
            waiting.append(pool.submit(server.complete, model, prompt, ANSWER))
            time.sleep(0.05)
        return [future.result() for future in waiting]


@pytest.mark.full
def test_smollm2_over_http_gives_the_tokens_of_vllms_own_attention(smollm2_fp32, tmp_path):
    options = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--enable-prefix-caching",
               "--enable-chunked-prefill", "--max-num-batched-tokens", str(BUDGET)]  # fmt: skip
    load, tokens = prompts(), {}
    for backend in ("CPU_ATTN", "CUSTOM"):
        log = tmp_path / f"{backend}.log"
        with Server(smollm2_fp32, log, *options, "--attention-backend", backend) as server:
            tokens[backend] = answers(server, smollm2_fp32, load)
            steps = server.counter("vllm:iteration_tokens_total_count")
            computed = server.counter("vllm:iteration_tokens_total_sum")
            cached = server.counter("vllm:prefix_cache_hits_total")
        assert ("serves the attention of 30 layers" in log.read_text()) == (backend == "CUSTOM")
        # What the load is for happened: prompts in chunks, beside decodes, over cached prefixes.
        assert computed / steps <= BUDGET
        assert steps < len(load) * ANSWER
        assert cached > 0
    assert all(len(answer) == ANSWER for answer in tokens["CUSTOM"])
    assert tokens["CUSTOM"] == tokens["CPU_ATTN"]

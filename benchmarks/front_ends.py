"""A model's steps with chunkattn beside the same steps with the library's own attention, in alternation.

    python benchmarks/front_ends.py transformers ./smollm2 --prompt 3000
    python benchmarks/front_ends.py batching ./smollm2
    python benchmarks/front_ends.py vllm ./smollm2 --own http://127.0.0.1:8001 --ours http://127.0.0.1:8002

The model is what `chunkattn models export ./smollm2` writes. For vLLM two servers run already, started alike but for
``--attention-backend`` (CPU_ATTN and CUSTOM). Rounds go to both in turn, the one that begins changes; what is printed
and written are medians and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import time
import urllib.request
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from chunkattn.bench import machine

Times = dict[str, float]  # what was timed -> seconds
Round = Callable[[int], Times]  # of prompts of so many tokens
WARM = 64
PAGE = 32


def prompt_of(length: int, seed: int) -> list[int]:
    return torch.randint(100, 40_000, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def transformers_rounds(model, tokens: int) -> dict[str, Round]:
    """Prefill of one prompt, then decodes, over the default cache."""

    def run(implementation: str, prompt: int) -> Times:
        model.set_attn_implementation(implementation)
        ids = torch.tensor([prompt_of(prompt, 0)])
        with torch.no_grad():
            begin = time.perf_counter()
            step = model(ids, use_cache=True, logits_to_keep=1)
            prefill = time.perf_counter() - begin
            decodes = []
            for _ in range(tokens):
                begin = time.perf_counter()
                ids = step.logits[:, -1:].argmax(-1)
                step = model(ids, past_key_values=step.past_key_values, use_cache=True)
                decodes.append(time.perf_counter() - begin)
        return {"prefill": prefill, "a token": statistics.median(decodes)}

    return {"own": lambda prompt: run("sdpa", prompt), "chunkattn": lambda prompt: run("chunkattn", prompt)}


def batching_rounds(model, tokens: int, requests: int, budget: int) -> dict[str, Round]:
    """Continuous batching of several prompts over transformers' paged cache, in steps of up to `budget` tokens."""
    import transformers

    generation = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=tokens, eos_token_id=-1, pad_token_id=0, use_cuda_graph=False
    )

    def run(implementation: str, prompt: int) -> Times:
        model.set_attn_implementation(implementation)
        prompts = [prompt_of(prompt, seed) for seed in range(requests)]
        batching = transformers.ContinuousBatchingConfig(
            page_size=PAGE, num_blocks=requests * (2 + (prompt + tokens) // PAGE) * 2, max_batch_tokens=budget
        )
        begin = time.perf_counter()
        answers = model.generate_batch(
            inputs=prompts, generation_config=generation, continuous_batching_config=batching, progress_bar=False
        )
        seconds = time.perf_counter() - begin
        counts = sorted(len(answer.generated_tokens) for answer in answers.values())
        if counts != [tokens] * requests:
            raise RuntimeError(f"generate_batch: expected {tokens} tokens a request, got {counts}")
        return {"all requests": seconds}

    return {"own": lambda prompt: run("sdpa", prompt), "chunkattn": lambda prompt: run("chunkattn", prompt)}


def asked(url: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(url + path, timeout=60) as answer:
        return json.load(answer)


def vllm_rounds(servers: dict[str, str], tokens: int) -> dict[str, Round]:
    """Time to the first token of one prompt, and between the others, over HTTP; no prompt comes twice.

    Nor in another run against the same servers, whose prefix cache would answer for them.
    """
    counter = itertools.count(time.time_ns())

    models = {url: asked(url, "/v1/models")["data"][0]["id"] for url in servers.values()}

    def run(url: str, prompt: int) -> Times:
        body = {
            "model": models[url], "prompt": prompt_of(prompt, next(counter)), "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        begin, arrivals = time.perf_counter(), []
        with urllib.request.urlopen(request, timeout=600) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    arrivals.append(time.perf_counter())
        if len(arrivals) < 2:
            raise RuntimeError(f"{url}: expected a stream of {tokens} tokens, got {len(arrivals)} pieces")
        gaps = [b - a for a, b in itertools.pairwise(arrivals)]
        return {"prefill": arrivals[0] - begin, "a token": statistics.median(gaps)}

    return {name: functools.partial(run, url) for name, url in servers.items()}


def alternate(rounds: dict[str, Round], prompt: int, count: int, seconds: float) -> dict[str, list[Times]]:
    """Rounds of both in turn, after a short one each that does not count, until the count or the time is used up."""
    names, begin, longest = list(rounds), time.perf_counter(), 0.0
    taken: dict[str, list[Times]] = {name: [] for name in names}
    for name in names:
        rounds[name](WARM)
    for i in range(count):
        started = time.perf_counter()
        if i and started - begin + longest > seconds:
            break
        for name in names if i % 2 == 0 else reversed(names):
            taken[name].append(rounds[name](prompt))
        longest = max(longest, time.perf_counter() - started)
    return taken


def load(directory: Path):
    from transformers import AutoModelForCausalLM

    from chunkattn.compat import transformers as shim

    shim.register()
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=["transformers", "batching", "vllm"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompt", type=int, default=3000, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=8, help="tokens of an answer")
    parser.add_argument("--requests", type=int, default=4, help="of continuous batching")
    parser.add_argument("--budget", type=int, default=512, help="tokens of a step of continuous batching")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no round that would end later")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="vllm: what the servers have")
    parser.add_argument("--own", help="address of vLLM's server with its own attention")
    parser.add_argument("--ours", help="address of vLLM's server with chunkattn")
    parser.add_argument("--output", type=Path, help="JSON file; results are added to what it holds")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.library == "vllm":
        if not (given.own and given.ours):
            parser.error("vllm: expected --own and --ours")
        rounds = vllm_rounds({"own": given.own, "chunkattn": given.ours}, given.tokens)
    elif given.library == "batching":
        rounds = batching_rounds(load(given.model), given.tokens, given.requests, given.budget)
    else:
        rounds = transformers_rounds(load(given.model), given.tokens)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    taken = alternate(rounds, given.prompt, given.rounds, given.seconds)
    own, ours = taken["own"], taken["chunkattn"]
    versions = machine.versions()
    if given.library == "vllm":
        versions["vllm"] = asked(given.ours, "/version")["version"]
    facts = {name: getattr(given, name) for name in ("library", "prompt", "tokens", "threads")}
    if given.library == "batching":
        facts |= {"requests": given.requests, "budget": given.budget}
    result = {
        **facts,
        "started": started,
        "command": machine.command("python benchmarks/front_ends.py"),
        "machine": machine.describe(),
        "versions": versions,
        "rounds": taken,
        "medians": {},
    }
    for what in own[0]:
        median = {name: statistics.median(r[what] for r in each) for name, each in taken.items()}
        ratios = [a[what] / b[what] for a, b in zip(own, ours)]
        result["medians"][what] = {**median, "ratio": statistics.median(ratios), "ratios": [min(ratios), max(ratios)]}
        print(
            f"{given.library}, prompts of {given.prompt}, {what}: own {median['own']:.4g} s, "
            f"chunkattn {median['chunkattn']:.4g} s, {statistics.median(ratios):.2f}x "
            f"({min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} rounds)"
        )
    if given.output:
        earlier = json.loads(given.output.read_text()) if given.output.exists() else []
        given.output.write_text(json.dumps([*earlier, result], indent=1) + "\n")


if __name__ == "__main__":
    main()

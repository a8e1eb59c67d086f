"""What is said about chunked prefill, each claim a command that prints its figures as a Markdown table.

python benchmarks/claims.py flops | prefill | memory | stall | sweet-spot | prefix | paging
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

from chunkattn.models import Model, load_model
from chunkattn.models.activation_memory import peak_activation_bytes
from chunkattn.scheduler import Request, ScheduledBatch, Scheduler, SchedulerConfig
from chunkattn.serving import Engine, ModelExecutor, ModelWork, Slo, StepMetadata, StepWork, request_times
from chunkattn.simulation import PROCESSES, Capacity, CostModel, Experiment, parse_setting, scale

PAGE = 16


def prompt(length: int, salt: int = 0) -> list[int]:
    """Token ids that repeat nothing."""
    return [(1000 + 7919 * (i + 31 * salt)) % 40000 for i in range(length)]


def engine(model: Model, budget: int | None, tokens: int, **options: object) -> tuple[Engine, ModelExecutor]:
    """An engine whose cache holds so many tokens."""
    page = int(options.pop("page_size", PAGE))  # type: ignore[call-overload]
    pages = -(-tokens // page) + 64
    seqs = 16 if budget is None else min(16, budget)
    config = SchedulerConfig(budget, seqs, page, pages, **{"enable_prefix_caching": False, **options})  # type: ignore[arg-type]
    executor = ModelExecutor(model.decoder, num_pages=pages, page_size=page)
    return Engine(Scheduler(config), executor), executor


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints Markdown."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")


def chunks_of(length: int, budget: int | None) -> list[ScheduledBatch]:
    """The steps of one prompt, scheduled and not computed."""
    scheduler = Scheduler(SchedulerConfig(budget, 1, PAGE, length // PAGE + 1, enable_prefix_caching=False))
    scheduler.add_request(Request("a", range(length), 1))
    steps = []
    while scheduler.has_work:
        steps.append(scheduler.schedule())
        scheduler.update(steps[-1], {"a": 0})
    return steps


def flops(model: Model, length: int) -> None:
    """Total FLOPs do not depend on the chunk; what is read again does."""
    work = ModelWork(model.config)
    rows = []
    for budget in (None, 1024, 256, 64, 16):
        counts = [StepWork.of(step.chunks) for step in chunks_of(length, budget)]
        total = sum(work.step_flops(count) for count in counts)
        moved = sum(work.step_bytes(count) for count in counts)
        pairs = sum(count.prefill_pairs for count in counts)
        rows.append([budget or "whole", len(counts), f"{pairs:,}", f"{total:,.0f}", f"{moved / 1e9:.2f} GB"])
    table(["budget", "steps", "visible pairs", "FLOPs", "weights and cache moved"], rows)


def prefill(model: Model, length: int) -> None:
    """One prompt alone, whole and in chunks; rounds are interleaved, medians."""
    budgets = (None, 512, 256, 128, 64)
    times: dict[int | None, list[float]] = {budget: [] for budget in budgets}
    tokens = {}
    for _ in range(3):
        for budget in budgets:
            loop, _ = engine(model, budget, length)
            request = Request("a", prompt(length), 1)
            loop.add_request(request)
            start = time.perf_counter()
            loop.run()
            times[budget].append(time.perf_counter() - start)
            tokens[budget] = request.output_token_ids
    whole = statistics.median(times[None])
    rows = [
        [
            budget or "whole",
            f"{statistics.median(seconds):.2f} s",
            f"{min(seconds):.2f} to {max(seconds):.2f} s",
            f"{statistics.median(seconds) / whole - 1:+.0%}",
            "equal" if tokens[budget] == tokens[None] else "different",
        ]
        for budget, seconds in times.items()
    ]
    table(["budget", f"prefill of {length} tokens", "range of 3", "against whole", "first token"], rows)


def memory(model: Model, length: int) -> None:
    """Peak activations follow the chunk and not the prompt."""
    rows = []
    device = model.decoder.device
    lengths = (length // 4, length // 2, length)
    for budget in (None, 256, 64):
        cells: list[object] = [budget or "whole"]
        for tokens in lengths:
            steps = chunks_of(tokens, budget)
            executor = ModelExecutor(model.decoder, num_pages=tokens // PAGE + 1, page_size=PAGE)
            largest = max(steps, key=lambda step: (step.num_tokens, step.chunks[0].end))
            metadata = StepMetadata.of(largest, PAGE, device)
            cells.append(f"{peak_activation_bytes(partial(executor.forward, metadata), device) / 1e6:.2f} MB")
        rows.append(cells)
    table(["budget", *(f"prompt of {tokens}" for tokens in lengths)], rows)


def stall(model: Model, length: int) -> None:
    """Four users read their answers when a long prompt arrives."""
    rows = []
    tokens = {}
    for budget in (None, 512, 256, 128, 64):
        loop, _ = engine(model, budget, length + 1000)
        chats = [Request(f"chat{i}", prompt(20, i + 1), 12 + length // (budget or length)) for i in range(4)]
        for chat in chats:
            loop.add_request(chat)
        for _ in range(4):
            loop.step()
        document = Request("document", prompt(length), 1)
        loop.add_request(document)
        loop.run()
        times = request_times(loop.steps)
        waits = [b - a for chat in chats for a, b in pairwise(times[chat.request_id].token_times)]
        tokens[budget] = [request.output_token_ids[:12] for request in (*chats, document)]
        rows.append(
            [
                budget or "whole",
                max(step.batch.num_tokens for step in loop.steps),
                f"{max(waits):.2f} s",
                f"{times['document'].ttft:.2f} s",
                "equal" if tokens[budget] == tokens[None] else "different",
            ]
        )
    table(["budget", "largest step", "longest wait of a chat", "TTFT of the prompt", "tokens"], rows)


def sweet_spot(cost: CostModel, model: Model) -> None:
    """Budgets under load: small ones cost throughput, large ones latency."""
    trace = scale(PROCESSES["azure-conv"].sample(600, seed=1), length=0.5)
    trace = scale(trace, rate=1 / PROCESSES["azure-conv"].rate)
    slo = Slo(ttft=10.0, itl=0.5)
    rows = []
    for budget in ("32", "64", "128", "256", "512", "1024", "2048", "whole"):
        capacity = Capacity(max_num_seqs=32, num_pages=4096)
        experiment = Experiment(trace, capacity, work=ModelWork(model.config), cost=cost, slo=slo)
        busy = experiment.run(parse_setting(f"sarathi:{budget}"), 0.25).summary
        full = experiment.run(parse_setting(f"sarathi:{budget}"), 100.0).summary
        rows.append(
            [
                budget,
                f"{full['computed_token_throughput']:.0f}",
                f"{busy['median_ttft_ms'] / 1e3:.2f} s",
                f"{busy['p99_ttft_ms'] / 1e3:.2f} s",
                f"{busy['p99_itl_ms']:.0f} ms",
                f"{busy['max_itl_ms']:.0f} ms",
                f"{busy['slo_attainment']:.0%}",
            ]
        )
    table(
        [
            "budget",
            "tokens/s when saturated",
            "TTFT p50",
            "TTFT p99",
            "ITL p99",
            "ITL max",
            "TTFT ≤ 10 s, ITL p99 ≤ 0.5 s",
        ],
        rows,
    )
    print(f"\n{cost.error_text}.")


def prefix(model: Model, length: int) -> None:
    """Six questions about one document, with and without the prefix cache."""
    rows = []
    answers = {}
    for caching in (False, True):
        loop, _ = engine(model, 256, 6 * (length + 40), enable_prefix_caching=caching)
        requests = [Request(str(i), prompt(length) + prompt(12, i + 1), 4) for i in range(6)]
        for request in requests:
            loop.add_request(request)
        start = time.perf_counter()
        loop.run()
        seconds = time.perf_counter() - start
        answers[caching] = [request.output_token_ids for request in requests]
        computed = sum(step.batch.num_tokens for step in loop.steps)
        cached = sum(request.num_cached_tokens for request in requests)
        same = "equal" if answers[caching] == answers[False] else "different"
        rows.append(["on" if caching else "off", computed, cached, len(loop.steps), f"{seconds:.2f} s", same])
    table(["prefix cache", "tokens computed", "tokens reused", "steps", "time", "tokens"], rows)


def paging(model: Model) -> None:
    """Any page size with any budget: the same steps, the same tokens."""
    expected = None
    rows = []
    budgets = (None, 64, 16)
    for page in (1, 8, 16, 128):
        cells: list[object] = [page]
        for budget in budgets:
            loop, executor = engine(model, budget, 1600, page_size=page)
            requests = [Request(str(i), prompt(60 + 30 * i, i), 5) for i in range(3)]
            for request in requests:
                loop.add_request(request)
            loop.run()
            answers = [request.output_token_ids for request in requests]
            expected = expected or answers
            same = "equal" if answers == expected else "different"
            cells.append(f"{len(loop.steps)} steps, {same} (margin {executor.least_margin:.2g})")
        rows.append(cells)
    table(["page size", *(f"budget {budget or 'whole'}" for budget in budgets)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claim", choices=("flops", "prefill", "memory", "stall", "sweet-spot", "prefix", "paging"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--length", type=int, default=1024, help="tokens of the long prompt")
    parser.add_argument("--calibration", type=Path, help="cost model of sweet-spot, from serve-sim --calibration")
    options = parser.parse_args()
    model = load_model(options.model)
    engine_, _ = engine(model, 32, 200)  # first-use costs
    engine_.add_request(Request("warm", prompt(80), 3))
    engine_.run()
    torch.manual_seed(0)
    if options.claim == "sweet-spot":
        if options.calibration is None:
            parser.error("sweet-spot needs --calibration FILE, as chunkattn serve-sim --calibration FILE writes it")
        sweet_spot(CostModel.read(options.calibration), model)
    elif options.claim == "paging":
        paging(model)
    else:
        claims = {"flops": flops, "prefill": prefill, "memory": memory, "stall": stall, "prefix": prefix}
        claims[options.claim](model, options.length)


if __name__ == "__main__":
    main()

"""`chunkattn tune budget`: measure or read, recommend, replay, show."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from chunkattn.atomic_file import require_writable, write_atomically
from chunkattn.bench import machine as bench_machine
from chunkattn.extras import require
from chunkattn.serving import percentile
from chunkattn.simulation import PROCESSES, Calibration, CostModel, SyntheticProcess, TraceRequest, read_trace, scale
from chunkattn.tuning.plain_digits import plain, plain_with_bar
from chunkattn.tuning.profile import Device, read_profile
from chunkattn.tuning.token_budget import BudgetPlan, Objective, describe_needs, engine_settings, plan_token_budget
from chunkattn.tuning.traffic import Confirmation, Replayed, confirm, load_of

_ROWS = 12  # of the table, and points of the picture
# Held-out errors of a model of step times: a median that is good, a 90th percentile that is, one that says little.
_GOOD_ERROR, _GOOD_TAIL, _BAD_TAIL = 0.1, 0.2, 0.5


@dataclass(frozen=True)
class BudgetOptions:
    """The command's options; see ``chunkattn tune budget --help``."""

    objective: Objective
    trace: Path | None
    decodes: int
    decode_context: int | None
    history: int | None
    arrivals: str
    num_requests: int
    length_scale: float
    rate: float | None
    seed: int
    tile: int
    model: str
    dtype: str
    device: str
    backend: str | None
    longest: int
    profile: Path | None
    save_profile: Path | None
    profiled: Device
    output: Path
    as_json: bool


def run_tune_budget(options: BudgetOptions) -> bool:
    """Recommends a budget, prints it and writes its files.

    Returns:
        Whether some budget meets the objective, in the replay too.

    Raises:
        ValueError, FileNotFoundError, MissingExtraError: one sentence for the user; no file is half written.
    """
    require("rich", extra="demo", purpose="chunkattn tune budget")
    require("matplotlib", extra="demo", purpose="the picture of tune budget")
    from rich.console import Console

    console = Console(highlight=False, stderr=options.as_json)
    for path in (options.save_profile, options.output / "budget.png", options.output / "budget.json"):
        if path is not None:
            require_writable(path)
    trace = _trace(options)
    if options.profile is not None:
        cost = read_profile(options.profile, options.profiled)
    else:
        cost, trace = _measure(options, trace, console)
    try:  # neither a failing plan costs the measured steps, nor a full disk the plan
        if options.save_profile is not None:
            write_atomically(options.save_profile, cost.to_json())
    finally:
        confirmation = _recommend(options, console, cost, trace)
    return confirmation is not None and confirmation.chosen is not None


def _recommend(
    options: BudgetOptions, console: Any, cost: CostModel, trace: Sequence[TraceRequest]
) -> Confirmation | None:
    """Plans, replays, prints and writes; the replay, None where no budget is feasible."""
    load = load_of(trace, options.decodes)
    load = replace(load, decode_context=options.decode_context or load.decode_context)
    if options.history is not None:
        load = replace(load, longest_history=options.history, history=min(load.history, options.history))
    plan = plan_token_budget(cost, load, options.objective, tile=options.tile, largest=cost.knots[-1])
    confirmation = None
    if plan.recommended is not None:
        confirmation = confirm(plan, cost, trace, max_num_seqs=options.decodes, rate=options.rate)
    _show(options, console, plan, confirmation, cost)
    return confirmation


def _trace(options: BudgetOptions) -> list[TraceRequest]:
    """The trace at one request a second on average."""
    if options.trace is None:
        trace = PROCESSES[options.arrivals].sample(options.num_requests, options.seed)
    else:
        trace = read_trace(options.trace)[: options.num_requests]
        if len(trace) < 2:
            raise ValueError(f"trace: expected at least two requests in {options.trace}, got {len(trace)}")
        if math.isnan(trace[0].arrival):
            trace = SyntheticProcess.fit(trace).with_arrivals(trace, options.seed)
    duration = trace[-1].arrival - trace[0].arrival
    own_rate = (len(trace) - 1) / duration if duration > 0 else 1.0
    return scale(trace, rate=1 / own_rate, length=options.length_scale)


def _measure(options: BudgetOptions, trace: list[TraceRequest], console: Any) -> tuple[CostModel, list[TraceRequest]]:
    """Steps of the model on this machine; and what of the trace the model can hold."""
    import torch
    from rich.progress import Progress

    from chunkattn.models import load_model

    model = load_model(
        options.model, dtype=getattr(torch, options.dtype), device=options.device, backend=options.backend
    )
    fitting = scale(trace, longest=model.decoder.max_seq_len)
    if not fitting:
        raise ValueError(f"trace: expected a request of at most {model.decoder.max_seq_len} tokens, got none")
    calibration = Calibration(
        model.decoder,
        page_size=16,
        longest_chunk=options.longest,
        longest_context=max(request.num_prompt_tokens + request.num_output_tokens for request in fitting),
        most_decodes=options.decodes,
        seed=options.seed,
    )
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring steps")
        cost = calibration.run(lambda done, total: progress.update(task, completed=done, total=total))
    return cost, fitting


def error_percentiles(cost: CostModel) -> tuple[float, float]:
    """Median and 90th percentile of the held-out errors; NaN where nothing was held out."""
    errors = sorted(cost.held_out_errors)
    return (median(errors), percentile(errors, 90)) if errors else (math.nan, math.nan)


def _show(
    options: BudgetOptions, console: Any, plan: BudgetPlan, confirmation: Confirmation | None, cost: CostModel
) -> None:
    from chunkattn.cli.tune_picture import budget_picture

    middle, wide = error_percentiles(cost)
    chosen = confirmation.chosen if confirmation is not None else None
    settings = engine_settings(chosen.budget, options.decodes) if chosen is not None else {}
    doubts = list(_doubts(plan, chosen, middle, wide))
    if chosen is not None and plan.still_rises(chosen.budget):
        largest = plan.candidates[-1].budget
        how = f"--longest {2 * largest} measures larger steps"
        if options.profile is not None:
            how = "a profile of larger steps tells, as --save-profile with a larger --longest keeps one"
        doubts.append(
            f"the prompt rate still rises at {largest} tokens, the largest budget measured; "
            f"a larger one may be better: {how}."
        )
    result = {
        "objective": asdict(plan.objective),
        "load": asdict(plan.load),
        "recommended": chosen.budget if chosen is not None else None,
        "settings": settings,
        "needs": asdict(plan.needs) if plan.needs is not None else None,
        "held_out_error": {"median": _known(middle), "p90": _known(wide), "steps": len(cost.held_out_errors)},
        "warnings": doubts,
        "candidates": [asdict(candidate) | {"feasible": candidate.feasible} for candidate in plan.candidates],
        "replay": asdict(confirmation) if confirmation is not None else None,
        "facts": {**cost.facts, "command": bench_machine.command()},
    }
    text = json.dumps(result, indent=1, default=str) + "\n"
    if options.as_json:  # first what was found, then the files, which may fail
        sys.stdout.write(text)
    else:
        _print(console, plan, confirmation, cost, doubts, settings)
    write_atomically(
        options.output / "budget.png", budget_picture(plan, confirmation, _shown(plan, confirmation), wide)
    )
    write_atomically(options.output / "budget.json", text)
    if not options.as_json:
        console.print(f"Picture: {options.output / 'budget.png'}", soft_wrap=True)


def _print(
    console: Any,
    plan: BudgetPlan,
    confirmation: Confirmation | None,
    cost: CostModel,
    doubts: Sequence[str],
    settings: dict[str, str],
) -> None:
    middle, wide = error_percentiles(cost)
    console.print(_table(plan, confirmation))
    known = "no held-out steps" if math.isnan(middle) else f"median {middle:.1%}, nine of ten under {wide:.1%}"
    console.print(f"Model of step times: held-out error {known} ({len(cost.held_out_errors)} steps).", soft_wrap=True)
    for line in doubts:
        console.print(f"Warning: {line}", soft_wrap=True)
    if "attention" in cost.facts:
        console.print(f"Attention is {cost.facts['attention']}.", soft_wrap=True)
    for line in describe_needs(plan):
        console.print(f"- {line}", soft_wrap=True)
    if plan.recommended is not None and confirmation is not None:
        _verdict(console, plan, confirmation, wide, settings)


def _doubts(plan: BudgetPlan, chosen: Replayed | None, middle: float, wide: float) -> Iterator[str]:
    """What the errors of the model of step times, NaN where unknown, leave open; in sentences."""
    if middle > _GOOD_ERROR:
        yield f"the steps are not predicted within {_GOOD_ERROR:.0%}; measure on an idle machine."
    elif wide > _GOOD_TAIL:
        yield f"one step in ten is not predicted within {_GOOD_TAIL:.0%}; measure on an idle machine."
    if plan.needs is not None and (wide > _BAD_TAIL or plan.needs.speedup * (1 - wide) <= 1):
        yield f"infeasible is uncertain: with steps predicted to ± {wide:.0%} some budget may meet the objective."
    if chosen is not None:
        predicted, asked = plan.of(chosen.budget).itl, plan.objective.itl
        if predicted * (1 + wide) > asked:
            yield (
                f"the error bar of budget {chosen.budget} reaches {plain(predicted * (1 + wide) * 1e3, 4)} ms, beyond "
                f"the ITL objective of {plain(asked * 1e3, 4)} ms, which may be missed."
            )


def _verdict(console: Any, plan: BudgetPlan, confirmation: Confirmation, wide: float, settings: dict[str, str]) -> None:
    chosen = confirmation.chosen
    if chosen is None:
        console.print(
            "not confirmed: no feasible budget meets the objective in the replay at "
            f"{plain(confirmation.rate, 3)} requests/s",
            soft_wrap=True,
        )
        return
    predicted = plan.of(chosen.budget)
    itl = plain_with_bar(predicted.itl * 1e3, predicted.itl * wide * 1e3, 4)
    console.print(
        f"[bold]Token budget {chosen.budget}[/]: predicted ITL p99 {itl} ms if every step is "
        f"full; replayed at {plain(confirmation.rate, 3)} requests/s: ITL p99 {plain(chosen.itl_p99 * 1e3, 4)} ms, "
        f"TTFT p99 {plain(chosen.ttft_p99, 3)} s",
        soft_wrap=True,
    )
    for engine, line in settings.items():
        console.print(f"  {engine:13}{line}", soft_wrap=True)


def _table(plan: BudgetPlan, confirmation: Confirmation | None) -> Any:
    from rich.table import Table

    load = plan.load
    table = Table(
        title=f"{load.decodes} decodes at {load.decode_context} tokens, history up to {load.longest_history}",
        title_style="bold",
        title_justify="left",
    )
    for column in ("budget", "step", "prompt", "prompt tok/s", "meets", "replayed ITL p99", "TTFT p99"):
        table.add_column(column, justify="right")
    replays = {r.budget: r for r in confirmation.replays} if confirmation is not None else {}
    chosen = confirmation.chosen.budget if confirmation is not None and confirmation.chosen is not None else None
    shown = _shown(plan, confirmation)
    for candidate in plan.candidates:
        if candidate.budget not in shown:
            continue
        replayed = replays.get(candidate.budget)
        table.add_row(
            str(candidate.budget),
            f"{plain(candidate.itl * 1e3, 4)} ms",
            f"{plain(candidate.ttft, 3)} s",
            f"{candidate.rate:,.0f}",
            "yes" if candidate.feasible else "no: ITL" if not candidate.meets_itl else "no: TTFT",
            f"{plain(replayed.itl_p99 * 1e3, 4)} ms" if replayed else "",
            f"{plain(replayed.ttft_p99, 3)} s" if replayed else "",
            style="bold" if candidate.budget == chosen else None,
        )
    return table


def _shown(plan: BudgetPlan, confirmation: Confirmation | None) -> set[int]:
    """Of table and picture: about a dozen budgets, evenly in ratio, and those that were replayed."""
    sizes = [candidate.budget for candidate in plan.candidates]
    first, last = sizes[0], sizes[-1]
    wanted = [first * (last / first) ** (i / (_ROWS - 1)) for i in range(_ROWS)]
    replayed = {r.budget for r in confirmation.replays} if confirmation is not None else set()
    return {min(sizes, key=lambda size: abs(size - target)) for target in wanted} | replayed


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value

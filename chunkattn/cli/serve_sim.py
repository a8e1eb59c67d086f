"""`chunkattn serve-sim`: one trace under several settings, with a real model or with a cost model of one."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import torch

from chunkattn.atomic_file import require_writable, write_atomically
from chunkattn.bench import machine as bench_machine
from chunkattn.cli.one_sentence import naming
from chunkattn.cli.serve_calibration import CalibrationFile, steps_wanted
from chunkattn.cli.serve_view import ServeView
from chunkattn.extras import require
from chunkattn.models import Model, load_model
from chunkattn.serving import Machine, ModelWork, Slo
from chunkattn.simulation import (
    PROCESSES,
    Capacity,
    CostModel,
    Experiment,
    Outcome,
    Setting,
    SyntheticProcess,
    TraceRequest,
    find_capacity,
    fitting,
    parse_setting,
    read_trace,
    scale,
    to_requests,
)

_UTILISATION = 0.7  # of the default rate: busy, but no queue that only grows
# Caches made to warm up and to measure have pages enough and no more; if they are too large, the pages are.
_SMALL_CACHE = {"num_pages": "--page-size", "spec.page_size": "--page-size"}


@dataclass(frozen=True)
class ServeOptions:
    """The command's options; see ``chunkattn serve-sim --help``."""

    trace: Path | None
    arrivals: str
    settings: tuple[str, ...]
    executor: str
    model: str
    dtype: str
    device: str
    backend: str | None
    num_requests: int | None
    rates: tuple[float, ...]
    length_scale: float
    seed: int
    capacity: Capacity
    slo: Slo
    machine: Machine
    calibration: Path | None
    find_capacity: bool
    output: Path
    as_json: bool


def run_serve_sim(options: ServeOptions) -> None:
    """Runs the comparison and writes its files.

    Raises:
        ValueError, OSError, MissingExtraError: one sentence for the user; no file is half written.
    """
    require("rich", extra="demo", purpose="chunkattn serve-sim")
    require("matplotlib", extra="demo", purpose="the pictures of serve-sim")
    from rich.console import Console

    settings = [parse_setting(text) for text in options.settings]
    if options.find_capacity and (options.executor == "model" or options.slo == Slo()):
        raise ValueError("--find-capacity: expected a simulated executor and at least one --slo option")
    calibration = CalibrationFile(
        options.calibration or options.output / "calibration.json", chosen=options.calibration is not None
    )
    for path in (options.output / "report.html", calibration.path):
        require_writable(path)
    trace = _read(options)  # a malformed line is found before a model is loaded
    console = Console(highlight=False, stderr=options.as_json)
    model = load_model(
        options.model, dtype=getattr(torch, options.dtype), device=options.device, backend=options.backend
    )
    trace, num_too_long = _fit_to_model(trace, model)
    config = settings[0].config(
        max_num_seqs=1, page_size=options.capacity.page_size, num_pages=options.capacity.num_pages
    )
    with naming({"pages": "--pages"}):
        fitting(to_requests(trace), config)  # refuses a cache that is too small before steps are measured
    try:
        outcomes, cost = _compare(options, model, trace, settings, calibration, console)
    except KeyboardInterrupt:
        kept = f"the cost model is in {calibration.path}" if calibration.path.exists() else "nothing was written"
        console.print(f"Interrupted: there is no report; {kept}.")
        sys.exit(130)  # as a shell reports SIGINT
    facts = _facts(options, model, trace, cost)
    _write(options, console, outcomes, {**facts, "left out": _too_long(num_too_long, model)})


def _compare(
    options: ServeOptions,
    model: Model,
    trace: Sequence[TraceRequest],
    settings: Sequence[Setting],
    calibration: CalibrationFile,
    console: Any,
) -> tuple[list[Outcome], CostModel | None]:
    """Every setting at every rate; and the cost model, where one was needed."""
    simulated = options.executor == "simulated"
    with ServeView(console) as view:
        cost = None
        rates = options.rates
        if simulated or not rates:
            seqs, page_size = options.capacity.max_num_seqs, options.capacity.page_size
            wanted = steps_wanted(trace, settings, seqs, simulated=simulated)
            with naming(_SMALL_CACHE):
                cost = calibration.cost_model(model, wanted, page_size, options.seed, view)
            rates = rates or (_sustainable_rate(cost, trace, options),)
        experiment = Experiment(
            trace,
            options.capacity,
            work=ModelWork(model.config, model.decoder.dtype.itemsize),
            decoder=None if simulated else model.decoder,
            cost=cost if simulated else None,
            slo=options.slo,
            machine=options.machine,
        )
        with naming(_SMALL_CACHE):
            experiment.warm_up()
        outcomes = []
        for rate in rates:
            for setting in settings:
                title = f"{setting.name} @ {rate:.3g} requests/s"
                view.begin(title, len(trace) * (2 if setting.disaggregated else 1), "requests")
                with naming({"num_pages": "--pages"}):
                    outcomes.append(experiment.run(setting, rate, view.on_step))
        if options.find_capacity:
            _find_capacities(experiment, outcomes, view)
    return outcomes, cost


def _find_capacities(experiment: Experiment, outcomes: Sequence[Outcome], view: ServeView) -> None:
    """Adds to every outcome the rate that its setting can bear."""
    settings = {outcome.setting.name: outcome for outcome in outcomes}
    for number, (name, outcome) in enumerate(settings.items()):
        view.begin(f"capacity of {name}", len(settings), "settings")
        view.advance(number, len(settings))
        rate = find_capacity(experiment, outcome.setting, start=outcome.rate)
        for other in outcomes:
            if other.setting.name == name:
                other.summary["slo_capacity"] = rate


def _read(options: ServeOptions) -> list[TraceRequest]:
    """The trace, with arrival times at one request a second on average."""
    number = options.num_requests
    if options.trace is None:
        trace = PROCESSES[options.arrivals].sample(number or _default_number(options), options.seed)
    else:
        trace = read_trace(options.trace)
        wanted = number or (_default_number(options) if options.executor == "model" else len(trace))
        trace = trace[:wanted]
        if math.isnan(trace[0].arrival):
            trace = (
                SyntheticProcess.fit(trace).with_arrivals(trace, options.seed) if len(trace) > 1 else _at_once(trace)
            )
    duration = trace[-1].arrival - trace[0].arrival
    own_rate = (len(trace) - 1) / duration if duration > 0 else 1.0
    return scale(trace, rate=1 / own_rate, length=options.length_scale)


def _default_number(options: ServeOptions) -> int:
    return 24 if options.executor == "model" else 2000


def _at_once(trace: Sequence[TraceRequest]) -> list[TraceRequest]:
    return [replace(request, arrival=0.0) for request in trace]


def _fit_to_model(trace: list[TraceRequest], model: Model) -> tuple[list[TraceRequest], int]:
    """Leaves out what the model cannot hold; says how many."""
    longest = model.decoder.max_seq_len
    fitting = scale(trace, longest=longest)
    if not fitting:
        raise ValueError(f"trace: expected a request of at most {longest} tokens (the model holds no more), got none")
    return fitting, len(trace) - len(fitting)


def _too_long(number: int, model: Model) -> str:
    return f"{number} requests with more tokens than the model's {model.decoder.max_seq_len}"


def _sustainable_rate(cost: CostModel, trace: Sequence[TraceRequest], options: ServeOptions) -> float:
    """Requests a second that keep one worker busy most of the time, by the cost model."""
    from chunkattn.serving import StepWork

    beside = max(min(options.capacity.max_num_seqs, 8), 1)
    prompt = sum(request.num_prompt_tokens for request in trace) / len(trace)
    output = sum(request.num_output_tokens for request in trace) / len(trace)
    rows = round(prompt)
    prefill = cost.seconds(StepWork(rows, rows, 1, 1, rows * (rows + 1) // 2, 0, rows))
    context = round(prompt + output / 2)
    decode = cost.seconds(StepWork(beside, 0, beside, beside, 0, beside * context, beside * context))
    return _UTILISATION / (prefill + output * decode / beside)


def _facts(
    options: ServeOptions, model: Model, trace: Sequence[TraceRequest], cost: CostModel | None
) -> dict[str, Any]:
    """What ran on what."""
    decoder = model.decoder
    name = options.trace.name if options.trace is not None else f"synthetic {options.arrivals}, seed {options.seed}"
    described = bench_machine.describe()
    facts: dict[str, Any] = {
        "trace": name,
        "requests": len(trace),
        "prompt tokens": sum(request.num_prompt_tokens for request in trace),
        "output tokens": sum(request.num_output_tokens for request in trace),
        "steps": cost.error_text
        if cost is not None and options.executor == "simulated"
        else "of the model, in real time",
        "model": f"{model.config.name}, {options.dtype} on {decoder.device}, {torch.get_num_threads()} threads",
        "cache": f"{options.capacity.num_pages} pages of {options.capacity.page_size} tokens a worker, "
        f"at most {options.capacity.max_num_seqs} requests",
        "clock": "idle time is skipped; a second worker runs on a clock of its own",
        "link": f"{options.capacity.link_bytes_per_second:.3g} bytes/s + "
        f"{options.capacity.link_seconds_per_page:.3g} s a page",
        "machine": f"{described['processor']}, {described['cores']} cores",
        "versions": ", ".join(f"{package} {version}" for package, version in bench_machine.versions().items()),
        "command": bench_machine.command(),
    }
    return facts


def _write(options: ServeOptions, console: Any, outcomes: Sequence[Outcome], facts: dict[str, Any]) -> None:
    from chunkattn.cli.serve_pictures import draw_all
    from chunkattn.cli.serve_report import html_report
    from chunkattn.cli.serve_table import comparison_table, findings

    result = {
        "facts": facts,
        "runs": [
            {
                "setting": outcome.setting.name,
                "rule": outcome.setting.rule,
                "request_rate": outcome.rate,
                "executor": outcome.executor,
                "note": outcome.note,
                "num_prompts": len(outcome.records),
                "num_refused": outcome.num_refused,
                **outcome.summary,
            }
            for outcome in outcomes
        ],
    }
    text = json.dumps(_json_able(result), indent=1) + "\n"
    pictures = draw_all(outcomes)
    page = html_report(outcomes, facts, pictures)
    # Everything is there before the first file is written.
    for name, picture in pictures.items():
        write_atomically(options.output / f"{name}.png", picture)
    write_atomically(options.output / "results.json", text)
    write_atomically(options.output / "report.html", page)
    if options.as_json:
        click.echo(text, nl=False)
        return
    console.print(comparison_table(outcomes))
    for note in dict.fromkeys(outcome.note for outcome in outcomes):
        console.print(f"Steps: {note}.")
    for line in findings(outcomes):
        console.print(f"- {line}")
    console.print(f"Report: {options.output / 'report.html'}")


def _json_able(value: Any) -> Any:
    """NaN is no JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _json_able(inner) for key, inner in value.items()}
    return [_json_able(inner) for inner in value] if isinstance(value, list) else value

"""`chunkattn demo`: the same story with whole-prompt and with chunked prefill."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import click
import torch

import chunkattn
from chunkattn.cli.scenario import PAGE_SIZE, Scenario, ScenarioRun, build_scenario, built_in_document
from chunkattn.extras import require
from chunkattn.models import Model, load_model
from chunkattn.serving import StepRecord


@dataclass(frozen=True)
class DemoOptions:
    """The command's options; see ``chunkattn demo --help``."""

    model: str
    chunk: int
    prompt_file: Path | None
    max_tokens: int
    dtype: str
    device: str
    backend: str | None
    timeline: Path | None
    as_json: bool


def run_demo(options: DemoOptions) -> bool:
    """Runs both modes and prints what came out.

    Returns:
        Whether everybody got the same tokens in both.

    Raises:
        ValueError, OSError, MissingExtraError: one sentence for the user.
    """
    require("rich", extra="demo", purpose="chunkattn demo")
    if options.timeline is not None:
        from chunkattn.cli.timeline_image import require_picture

        require_picture(options.timeline)
    return _json_demo(options) if options.as_json else _terminal_demo(options)


def _json_demo(options: DemoOptions) -> bool:
    from chunkattn.cli.results import as_json, result_of, tokens_equal

    model, scenario = _prepare(options)
    whole, chunked = (_run(model, scenario, budget) for budget in (None, options.chunk))
    equal = tokens_equal(whole, chunked)
    click.echo(json.dumps(as_json(result_of(whole), result_of(chunked), equal)))
    _save_timeline(options, whole, chunked)
    return equal


def _terminal_demo(options: DemoOptions) -> bool:
    from rich.console import Console

    from chunkattn.cli.live_view import LiveView
    from chunkattn.cli.results import result_of, results_table, tokens_equal
    from chunkattn.cli.timeline import timeline_text

    console = Console(highlight=False)
    with console.status(f"loading {options.model}") if console.is_terminal else nullcontext():
        model, scenario = _prepare(options)
    console.print(_headline(model, scenario, options), soft_wrap=False)
    console.print()
    runs = []
    for title, budget in _modes(options):
        run = ScenarioRun(model, scenario, budget)
        with LiveView(console, title, run, model.tokenizer) as view:
            for step in run.run():
                view.on_step(step)
        runs.append((title, run))
    (_, whole), (_, chunked) = runs
    console.print(timeline_text(runs, min(console.width, 160)))
    console.print()
    with console.status("measuring memory") if console.is_terminal else nullcontext():
        results = result_of(whole), result_of(chunked)
    console.print(results_table(*results, options.chunk))
    equal = tokens_equal(whole, chunked)
    count = sum(len(request.output_token_ids) for request in whole.requests.values())
    margin = min(whole.least_margin, chunked.least_margin)
    verdict = (
        "[bold green]identical[/] in both runs" if equal else "[bold red]different[/] (rounding decides near a tie)"
    )
    console.print(f"Greedy tokens: {verdict}. {count} tokens; the two best logits were never closer than {margin:.2g}.")
    _save_timeline(options, whole, chunked)
    if options.timeline is not None:
        console.print(f"Timeline: {options.timeline}")
    return equal


def _modes(options: DemoOptions) -> tuple[tuple[str, int | None], ...]:
    return (
        ("Whole-prompt prefill", None),
        (f"Chunked prefill, {options.chunk} tokens a step", options.chunk),
    )


def _prepare(options: DemoOptions) -> tuple[Model, Scenario]:
    """Loads model and text, and runs a little of each kind of step, so that first-use costs fall into no run."""
    document = built_in_document() if options.prompt_file is None else _read(options.prompt_file)
    model = load_model(
        options.model, dtype=getattr(torch, options.dtype), device=options.device, backend=options.backend
    )
    scenario = build_scenario(model.tokenizer, document, options.max_tokens, model.decoder.max_seq_len)
    ScenarioRun(model, scenario, options.chunk)  # refuses a bad budget before anything runs
    short = replace(scenario.document, token_ids=scenario.document.token_ids[: 2 * options.chunk])
    _run(model, replace(scenario, document=short, max_tokens=10), options.chunk)
    return model, scenario


def _run(
    model: Model, scenario: Scenario, budget: int | None, on_step: Callable[[StepRecord], None] | None = None
) -> ScenarioRun:
    run = ScenarioRun(model, scenario, budget)
    for step in run.run():
        if on_step is not None:
            on_step(step)
    return run


def _save_timeline(options: DemoOptions, whole: ScenarioRun, chunked: ScenarioRun) -> None:
    if options.timeline is None:
        return
    from chunkattn.cli.timeline_image import save_timeline

    titles = [title for title, _ in _modes(options)]
    save_timeline(list(zip(titles, (whole, chunked), strict=True)), options.timeline)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--prompt-file: expected UTF-8 text, got {error}") from None


def _headline(model: Model, scenario: Scenario, options: DemoOptions) -> str:
    config, decoder = model.config, model.decoder
    table = [line.split() for line in chunkattn.explain(decoder.problem(PAGE_SIZE)).splitlines()]
    taken = options.backend or next(name for name, state, *_ in table if state == "taken")
    return (
        f"[bold]{config.name}[/] {options.dtype} on {decoder.device}, attention backend [bold]{taken}[/], "
        f"{torch.get_num_threads()} threads\n{len(scenario.chats)} chat users are being answered when a document of "
        f"[bold]{len(scenario.document.token_ids)} tokens[/] arrives."
    )

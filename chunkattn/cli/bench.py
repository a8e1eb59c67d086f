"""`chunkattn bench`: the options; the work is in `chunkattn.bench`, imported when a command runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkattn.atomic_file import require_writable, write_atomically
from chunkattn.cli.one_sentence import one_sentence
from chunkattn.cli.option_types import POSITIVE

if TYPE_CHECKING:
    from chunkattn.bench.case import BenchCase
    from chunkattn.bench.record import Record

_QUICK_S = 150.0
"""Seconds that `--quick` may measure for, so that it ends within three minutes."""

_FILE = click.Path(dir_okay=False, path_type=Path)
_EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def bench() -> None:
    """Side-by-side figures for mixed batches, against peers and the machine's limits."""


@bench.command()
@click.option("--cases", "suite", default="cpu", show_default=True, metavar="NAME|FILE", help="List of cases.")
@click.option("--only", metavar="TEXT,…", default="", help="Cases whose key contains one of these texts.")
@click.option("--dtype", "dtypes", metavar="NAME,…", default="", help="Only these dtypes of q.")
@click.option("--page-size", "page_sizes", metavar="N,…", default="", help="Only these page sizes.")
@click.option("--providers", "names", metavar="NAME,…", default="", help="Only these providers.  [default: all]")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(min=1), help="Interleaved rounds.")
@click.option("--window", default=0.35, show_default=True, type=POSITIVE, help="Seconds of a provider's turn.")
@click.option("--threads", type=click.IntRange(min=1, max=4096), help="CPU threads.  [default: torch's]")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Another build (the folder with its package) in the same rounds; exit status 1 if ours is slower.",
)
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"]))
@click.option("--quick", is_flag=True, help="The suite 'quick' in under three minutes.")
@click.option("--output", type=_FILE, metavar="FILE", help="Result file.  [default: chunkattn-bench.json]")
@click.option("--append", is_flag=True, help="Add to the result file, replacing cases of the same key.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as one JSON object and nothing else.")
def run(
    suite: str,
    only: str,
    dtypes: str,
    page_sizes: str,
    names: str,
    rounds: int,
    window: float,
    threads: int | None,
    against: Path | None,
    device: str,
    quick: bool,
    output: Path | None,
    append: bool,
    as_json: bool,
) -> None:
    """Measures cases: correctness first, then interleaved rounds with every provider there is."""
    import torch

    from chunkattn.bench import cases, providers, session, table
    from chunkattn.bench import compare as verdicts
    from chunkattn.bench.progress import CaseProgress
    from chunkattn.bench.rounds import Effort

    with one_sentence():
        chosen = _filter(cases.load("quick" if quick else suite).cases, only, dtypes, page_sizes)
        wanted = tuple(_split(names)) or tuple(providers.MODULES)
        for name in wanted:
            providers.load(name)
        if threads:
            torch.set_num_threads(threads)
        destination = _Destination(output, append, as_json)
        effort = Effort(3, 4, 0.15) if quick else Effort(rounds, rounds + 5, window)
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device: expected a machine with a CUDA device for 'cuda', found none")
        console = _console()
        with CaseProgress(_console(stderr=True), [case.key for case in chosen]) as shown:
            record = session.run(
                chosen,
                session.Settings(
                    wanted,
                    effort,
                    device,
                    max_buffers=4 if quick else 8,
                    against=None if against is None else str(against),
                    limit_s=_QUICK_S if quick else None,
                ),
                progress=shown.update,
                done=None if as_json else lambda cell: table.print_cell(console, cell),
            )
        changes = verdicts.rivalry(record)
        destination.deliver(record)
    if changes and not as_json:
        table.print_changes(console, changes)
    if verdicts.regressions(changes):
        raise click.exceptions.Exit(1)


@bench.command()
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(min=1), help="Interleaved rounds.")
@click.option("--window", default=0.1, show_default=True, type=POSITIVE, help="Seconds of a task's turn.")
@click.option("--output", type=_FILE, metavar="FILE", help="Result file.  [default: chunkattn-bench.json]")
@click.option("--append", is_flag=True, help="Add to the result file, replacing entries of the same key.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as one JSON object and nothing else.")
def micro(rounds: int, window: float, output: Path | None, append: bool, as_json: bool) -> None:
    """Call overhead, plan, and the cache write beside a peer's."""
    from chunkattn.bench import micro as tasks
    from chunkattn.bench import session, table
    from chunkattn.bench.rounds import Effort

    with one_sentence():
        destination = _Destination(output, append, as_json)
        record = session.run_micro(tasks.all_tasks(), Effort(rounds, rounds + 5, window))
        if not as_json:
            table.print_micro(_console(), record.micro)
        destination.deliver(record)


@bench.command()
@click.argument("before", type=_EXISTING)
@click.argument("after", type=_EXISTING)
@click.option("--all", "everybody", is_flag=True, help="The peers' times too.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON and nothing else.")
def compare(before: Path, after: Path, everybody: bool, as_json: bool) -> None:
    """Two result files: what got slower, beyond noise. Exit status 1 if one of our cases did."""
    import dataclasses

    from chunkattn.bench import compare as verdicts
    from chunkattn.bench import table
    from chunkattn.bench.record import Record

    with one_sentence():
        changes = verdicts.compare(Record.load(before), Record.load(after), everybody=everybody)
        if not changes:
            raise ValueError(f"after: expected a case in common with {before}, got none")
        if as_json:
            click.echo(json.dumps([dataclasses.asdict(change) for change in changes]))
        else:
            table.print_changes(_console(), changes)
    if verdicts.regressions(changes):
        raise click.exceptions.Exit(1)


@bench.command()
@click.argument("results", nargs=-1, required=True, type=_EXISTING)
@click.option("--output", type=_FILE, default=Path("chunkattn-bench.html"), show_default=True, metavar="FILE")
@click.option("--markdown", is_flag=True, help="Print the summary as a Markdown table instead.")
def report(results: tuple[Path, ...], output: Path, markdown: bool) -> None:
    """Result files as one self-contained HTML page."""
    from chunkattn.bench import markdown as summary
    from chunkattn.bench import page
    from chunkattn.bench.record import Record

    with one_sentence():
        record = Record()
        for path in results:
            record.merge(Record.load(path))
        if markdown:
            click.echo(summary.render(record), nl=False)
            return
        write_atomically(output, page.render(record))
    click.echo(f"written: {output}")


@bench.command()
@click.argument("trace", type=_EXISTING)
@click.option("--number", default=4, show_default=True, type=click.IntRange(min=1), help="Mixes to draw.")
@click.option("--running", default=16, show_default=True, type=click.IntRange(min=1), help="Requests in a step.")
@click.option("--budget", default=256, show_default=True, type=click.IntRange(min=1), help="Query tokens of a step.")
@click.option("--longest", type=click.IntRange(min=1), help="Leave out requests with more tokens.")
@click.option("--seed", default=0, show_default=True, type=int)
@click.option("--model", default="llama-3-8b", show_default=True, help="A preset's heads.")
def mixes(trace: Path, number: int, running: int, budget: int, longest: int | None, seed: int, model: str) -> None:
    """Steps of a running engine, drawn from a trace (CSV or JSON lines), as a case file on standard output."""
    from chunkattn.bench import mixes as steps
    from chunkattn.bench import models

    with one_sentence():
        models.layers(model)
        drawn = steps.sample(
            steps.read_trace(trace), number=number, running=running, budget=budget, longest=longest, seed=seed
        )
        named = {f"{trace.stem}-{index}": groups for index, groups in enumerate(drawn)}
        title = f"{number} steps of {running} requests and at most {budget} tokens, lengths of {trace.name}"
        click.echo(steps.to_yaml(title, named, heads=model), nl=False)


@bench.command("list")
def list_() -> None:
    """The lists of cases, and every provider with what it lacks."""
    from chunkattn.bench import table

    with one_sentence():
        table.print_choices(_console())


def _console(*, stderr: bool = False) -> Any:
    """A rich console."""
    from chunkattn.extras import require

    return require("rich.console", extra="bench", purpose="chunkattn bench").Console(highlight=False, stderr=stderr)


class _Destination:
    """The result file. Made before anything is measured, so that what would be in its way is found then."""

    def __init__(self, output: Path | None, append: bool, as_json: bool) -> None:
        """Looks at the file.

        Raises:
            ValueError: there is something else to append to.
            OSError: it cannot be written.
        """
        from chunkattn.bench.record import Record

        self._path = output or (None if as_json else Path("chunkattn-bench.json"))
        self._as_json = as_json
        self._before = Record.load(self._path) if self._path and append and self._path.exists() else Record()
        if self._path is not None:
            require_writable(self._path)

    def deliver(self, record: Record) -> None:
        """Writes the record behind what was there, and prints it or where it went."""
        self._before.merge(record)
        if self._path is not None:
            write_atomically(self._path, self._before.text())
        if self._as_json:
            click.echo(json.dumps(self._before.to_json()))
        else:
            click.echo(f"written: {self._path}")


def _filter(found: tuple[BenchCase, ...], only: str, dtypes: str, page_sizes: str) -> list[BenchCase]:
    """Cases that match the options.

    Raises:
        ValueError: none does.
    """
    texts, kinds, sizes = _split(only), _split(dtypes), _split(page_sizes)
    chosen = [
        case
        for case in found
        if (not texts or any(text in case.key for text in texts))
        and (not kinds or case.dtype in kinds)
        and (not sizes or str(case.page_size) in sizes)
    ]
    if not chosen:
        raise ValueError(
            f"--only, --dtype and --page-size: expected to match one of {', '.join(case.key for case in found)}"
        )
    return chosen


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]

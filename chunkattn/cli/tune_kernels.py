"""`chunkattn tune kernels`: choose settings by measuring them, keep what is certain, say why."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from chunkattn import backends, validate
from chunkattn.atomic_file import require_writable
from chunkattn.backends.device import Gpu, gpu, stand_in
from chunkattn.bench import machine as bench_machine
from chunkattn.bench.case import BenchCase, Heads
from chunkattn.env import SETTINGS
from chunkattn.extras import require
from chunkattn.planning.tuning_table import TuningKey, TuningTable, table_path, writer
from chunkattn.tuning.kernels import Job, Outcome, jobs, tune
from chunkattn.tuning.problem import MIXES, heads_of, parse_mix, require_memory, spec_of
from chunkattn.tuning.search import Refused
from chunkattn.tuning.static import Compiled, compile_job
from chunkattn.types import AttentionSpec

_SECONDS_LEFT = 1.0  # with less no key is begun
_LINE_EVERY = 5.0  # seconds between lines of progress where there is no terminal


@dataclass(frozen=True)
class KernelOptions:
    """The command's options; see ``chunkattn tune kernels --help``."""

    model: str | None
    q_heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int | None
    dtypes: tuple[str, ...]
    kv_dtype: str | None
    page_sizes: tuple[int, ...]
    mixes: tuple[str, ...]
    backend: str | None
    device: str
    arch: int | None
    sms: int
    compile: bool
    budget_seconds: float
    table: Path | None
    again: bool
    dry_run: bool
    seed: int
    as_json: bool


def run_tune_kernels(options: KernelOptions) -> bool:
    """Tunes what is not tuned yet, saving entry by entry: an interrupted run goes on where it was.

    Returns:
        Whether every key has an entry now.

    Raises:
        OSError, ValueError, MissingExtraError: one sentence for the user.
    """
    require("rich", extra="tune", purpose="chunkattn tune kernels")
    from rich.console import Console

    console = Console(highlight=False, stderr=options.as_json, soft_wrap=True)
    try:
        if options.arch is not None:
            absent = Gpu.of_arch(options.arch, options.sms)
            with stand_in("cuda", absent):  # nothing can be measured then
                return _run(replace(options, device="cuda", dry_run=True), console)
        if not options.dry_run:
            writer()  # not after minutes of measuring
        return _run(options, console)
    except Refused as error:
        raise ValueError(str(error)) from error


def _run(options: KernelOptions, console: Any) -> bool:
    batches = list(cases(options))
    table = _table(options)
    name = _backend(options, list(dict.fromkeys(spec_of(case, options.device) for case in batches)))
    module: Any = backends.load(name)
    if options.compile and not hasattr(module, "compiled"):
        raise ValueError(f"--compile: expected a backend of GPUs, got {name}")
    end = time.monotonic() + options.budget_seconds
    found = list(jobs(module, batches, options.device))
    todo = [job for job in found if options.again or table.find(job.key) is None]
    if not options.dry_run:
        require_memory((case for job in todo for case in (*job.cases, *job.others)), options.device)
    if not options.as_json:
        where = f" on sm_{options.arch} with {options.sms} SMs" if options.arch is not None else ""
        for shape in dict.fromkeys(map(_shape, batches)):
            console.print(f"{name}{where}: {shape}")
        keys = f"{len(found)} key{'s' if len(found) > 1 else ''}"
        console.print(f"{keys}, {len(found) - len(todo)} tuned before; table {table.path}")
    rows = [_known(job, table) for job in found if job not in todo]
    compiled: dict[TuningKey, list[Compiled]] = {}
    if options.compile:
        todo = _compile_all(options, console, todo, compiled, end)
    todo.sort(key=lambda job: job.least_seconds)  # of little time the most keys come out
    if options.dry_run:
        rows += [_planned(job, compiled.get(job.key)) for job in todo]
    else:
        reached = saved = 0
        try:
            for outcome in _tune_all(options, console, todo, table, end):
                reached += 1
                saved += outcome.entry is not None
                rows.append(_measured(outcome))
                if not options.as_json:
                    console.print(_sentence(outcome))
        except KeyboardInterrupt:
            kept = f"{saved} of {len(todo)} keys are tuned and saved in {table.path}"
            console.print(f"Interrupted: {kept}; {_again(options)}.")
            sys.exit(130)  # as a shell reports SIGINT
        rows += [_row(job, "not reached", None) for job in todo[reached:]]
        if not options.as_json:
            for job in todo[reached:]:
                console.print(f"{_label(job.key)}: not reached, too little time was left")
            if saved < len(todo):
                more = "" if saved else " with more --budget-seconds"
                console.print(f"Not every key is tuned: {_again(options, more)}.")
    _show(options, console, rows, table)
    return options.dry_run or all(row["values"] is not None for row in rows)


def _table(options: KernelOptions) -> TuningTable:
    """The table, which can be written unless this machine can measure nothing for it; not found out after minutes.

    Raises:
        OSError, ValueError: it cannot.
    """
    path = table_path(options.table)
    if options.arch is None:
        require_writable(path)
    table = TuningTable(path)
    if options.arch is None and table.refuses:
        raise ValueError(f"--table: expected a file that can be written, got {path}: {table.refuses}")
    return table


def cases(options: KernelOptions) -> Iterator[BenchCase]:
    """Every batch that is asked for."""
    mixes = {text: parse_mix(text) for text in options.mixes} or MIXES
    for heads in _heads(options):
        for dtype in options.dtypes:
            for page_size in options.page_sizes:
                for name, groups in mixes.items():
                    kv_dtype = options.kv_dtype or dtype
                    yield BenchCase("tune", name, groups, heads, dtype, kv_dtype, page_size)


def _heads(options: KernelOptions) -> tuple[Heads, ...]:
    """Of the model, or of the options that stand for one."""
    if options.model is not None:
        return heads_of(options.model)
    if options.q_heads % options.kv_heads:
        raise ValueError(f"--q-heads: expected a multiple of --kv-heads ({options.kv_heads}), got {options.q_heads}")
    return (Heads(options.q_heads, options.kv_heads, options.head_dim, options.head_dim_v or options.head_dim),)


def _shape(case: BenchCase) -> str:
    heads = case.heads
    dims = f"{heads.head_dim}" if heads.head_dim == heads.head_dim_v else f"{heads.head_dim}/{heads.head_dim_v}"
    kv = "" if case.kv_dtype == case.dtype else f" with {case.kv_dtype} caches"
    return (
        f"{heads.num_q_heads} query and {heads.num_kv_heads} KV heads of {dims}, {case.dtype}{kv}, pages of "
        f"{case.page_size}"
    )


def _backend(options: KernelOptions, specs: Sequence[AttentionSpec]) -> str:
    """The first backend with settings that serves every problem; nothing is built for a list.

    Raises:
        ValueError: there is none.
    """
    asked = options.backend or SETTINGS.backend
    refusals = []
    for name in (asked,) if asked else backends.candidates(options.device):
        module: Any = backends.load(name)
        ask = module.supports if options.dry_run else getattr(module, "prepare", module.supports)
        reasons = [] if hasattr(module, "settings_space") else ["it has no settings to tune"]
        for spec in specs:
            reasons += validate.refusals(spec) or module.supports(spec).reasons or ask(spec).reasons
        if not reasons:
            return name
        refusals.append(f"{name}: {reasons[0]}")
    raise ValueError(f"no backend with settings can serve this; {'; '.join(refusals)}")


def _tune_all(
    options: KernelOptions, console: Any, todo: list[Job], table: TuningTable, end: float
) -> Iterator[Outcome]:
    """One after the other, each with all the time that is left: of shares nothing would come out, again and again.

    Args:
        todo: those that take least first; the others are not begun where they could not end.
        end: on the monotonic clock.
    """
    with _progress(console, len(todo)) as report:
        for number, job in enumerate(todo):
            if end - time.monotonic() < max(_SECONDS_LEFT, job.least_seconds):
                return
            label = _label(job.key)

            def tell(share: float, at: int = number, what: str = label) -> None:
                report(at + share, what)

            outcome = tune(job, device=options.device, deadline=end, progress=tell, seed=options.seed)
            if outcome.entry is not None and not table.save({job.key: outcome.entry}):
                raise ValueError(f"{table.path} cannot be written any more; no more is measured, it would be lost")
            yield outcome


def _compile_all(
    options: KernelOptions, console: Any, todo: list[Job], compiled: dict[TuningKey, list[Compiled]], end: float
) -> list[Job]:
    """The jobs without the settings whose kernels cannot be good."""
    device, kept = gpu(options.device), []
    assert device is not None  # a backend of GPUs serves there
    with _progress(console, len(todo)) as report:
        for number, job in enumerate(todo):

            def tell(share: float, at: int = number) -> None:
                report(at + share, "compiling")

            pruned, results = compile_job(job, device, deadline=end, progress=tell)
            compiled[job.key] = results
            kept.append(pruned)
    return kept


class _progress:
    """A bar on a terminal, a line every few seconds elsewhere."""

    def __init__(self, console: Any, total: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console, self._total, self._last = console, total, time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            refresh_per_second=2,  # drawing takes time from the measured
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Callable[[float, str], None]:
        self._bar.start()
        return self._report

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def _report(self, done: float, what: str) -> None:
        self._bar.update(self._task, completed=done, description=what)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last >= _LINE_EVERY:
            self._last = now
            print(f"{done / self._total:4.0%}  {what}", file=sys.stderr, flush=True)


def _row(job: Job, state: str, values: Mapping[str, int] | None, **facts: object) -> dict[str, Any]:
    """A key of the JSON; a spread that was not measured is null."""
    return {
        "key": job.key._asdict(),
        "state": state,
        "values": dict(values) if values is not None else None,
        "default": dict(job.settings[0]),
        "batches": {case.name: [list(group) for group in case.requests] for case in job.cases},
        "candidates": {"possible": job.possible, "distinct": job.distinct, "measured": len(job.settings)},
        **facts,
    }


def _known(job: Job, table: TuningTable) -> dict[str, Any]:
    entry = table.find(job.key)
    assert entry is not None
    return _row(job, "tuned before", entry.values, gain=entry.gain, spread=entry.spread or None)


def _planned(job: Job, compiled: Sequence[Compiled] | None) -> dict[str, Any]:
    kernels = None if compiled is None else [asdict(one) for one in compiled]
    return _row(job, "to be measured", None, settings=[dict(values) for values in job.settings], compiled=kernels)


def _measured(outcome: Outcome) -> dict[str, Any]:
    verdict, job = outcome.verdict, outcome.job
    values = outcome.entry.values if outcome.entry is not None else None
    refused = [{"values": dict(job.settings[number]), "reason": text} for number, text in verdict.refused.items()]
    return _row(
        job,
        verdict.reason,
        values,
        gain=verdict.gain,
        spread=verdict.spread or None,
        refused=refused,
        winner=verdict.winner,
    )


def changed(values: Mapping[str, int], default: Mapping[str, int]) -> str:
    """What differs from the default, in words."""
    return ", ".join(f"{name} {value}" for name, value in values.items() if default.get(name) != value) or "the default"


def _label(key: TuningKey) -> str:
    return f"{key.dtype} D {key.head_dim} page {key.page_class} {key.mix_class}"


def _sentence(outcome: Outcome) -> str:
    verdict, job = outcome.verdict, outcome.job
    where = _label(job.key)
    refused = f"; {len(verdict.refused)} refused for wrong answers" if verdict.refused else ""
    if outcome.entry is None:
        return f"{where}: not tuned, {verdict.reason}{refused}"
    if verdict.winner == 0:
        return f"{where}: the default stays, {verdict.reason}{refused}"
    gain = f"{verdict.gain - 1:.1%} faster than the default, spread {verdict.spread:.1%}"
    return f"{where}: {changed(outcome.entry.values, job.settings[0])}: {gain}{refused}"


def _show(options: KernelOptions, console: Any, rows: list[dict[str, Any]], table: TuningTable) -> None:
    if options.as_json:
        facts = {"machine": bench_machine.describe(), "command": bench_machine.command()}
        sys.stdout.write(json.dumps({"table": str(table.path), "keys": rows, **facts}, indent=1) + "\n")
        return
    if options.dry_run:
        for row in rows:
            counts = row["candidates"]
            console.print(
                f"{_label(TuningKey(**row['key']))}: {row['state']}, "
                f"{counts['measured']} of {counts['distinct']} different plans from {counts['possible']} settings, "
                f"on {'; '.join(row['batches'])}"
            )
            for one in row.get("compiled") or ():
                figures = one["figures"]
                state = one["refused"] or ("kept" if figures else "kept, not compiled")
                found = ", ".join(f"{name} {value}" for name, value in (figures or {}).items())
                console.print(f"  {changed(one['values'], row['default'])}: {state}{'; ' + found if found else ''}")


def _again(options: KernelOptions, more: str = "") -> str:
    return f"run the command again{' without --again' if options.again else ''}{more}, it goes on from here"

"""A benchmark run: for every case prepare, gate, time in interleaved rounds, record."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import gc
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import chunkattn
from chunkattn.bench import gate, limits, machine, micro, providers, rival, work
from chunkattn.bench.case import DTYPES, BenchCase
from chunkattn.bench.graphs import captured
from chunkattn.bench.inputs import input_sets
from chunkattn.bench.memory import peak_bytes
from chunkattn.bench.providers.base import Call, Provider
from chunkattn.bench.record import Cell, Measured, Part, Record
from chunkattn.bench.rounds import Contender, Effort, interleave
from chunkattn.bench.watch import Step, Watch
from chunkattn.testing import AttentionInputs

_MAX_BUFFER_BYTES = 2 << 30
_ASLEEP = 0.6
"""A provider whose calling thread ran for less than this share of its time waited for something."""

_ENOUGH_PEERS = 3
"""Peers that are prepared whatever the time."""

_PREPARING = 0.5
"""Share of a case's time after which no more peers are prepared."""

_MEMORY_BOUND_INTENSITY = 50
"""FLOP per byte below which inputs move between rounds."""


@dataclass(frozen=True)
class Settings:
    """How to run.

    Attributes:
        providers: keys in `chunkattn.bench.providers.MODULES`; those for another device are left out.
        effort: of each case.
        device: "cpu" or "cuda".
        max_buffers: most input sets that calls rotate over.
        against: a folder with another build of chunkattn to measure in the same rounds.
        limit_s: seconds for all cases together: on a machine too busy for that there are fewer rounds, and past
            `_ENOUGH_PEERS` no more peers are prepared. The least of a case, one round, is always measured.
    """

    providers: tuple[str, ...] = tuple(providers.MODULES)
    effort: Effort = field(default_factory=Effort)
    device: str = "cpu"
    max_buffers: int = 8
    against: str | None = None
    limit_s: float | None = None


Progress = Callable[[str, float], None]
"""Gets what is being done and the share of the case that is done, in [0, 1]."""


def run(
    cases: Sequence[BenchCase],
    settings: Settings,
    *,
    progress: Callable[[int, str, float], None] | None = None,
    done: Callable[[Cell], None] | None = None,
) -> Record:
    """Measures cases one after another.

    Args:
        cases: what to measure.
        settings: with whom and how long.
        progress: called with (case number, what is being done, share of the case).
        done: called with each finished cell.

    Raises:
        UnsupportedError: chunkattn is to be measured and has no backend here for any of the cases.
    """
    _require_ours(cases, settings)
    begin, started = time.perf_counter(), _now()
    record = Record()
    for number, case in enumerate(cases):

        def report(what: str, share: float, number: int = number) -> None:
            if progress is not None:
                progress(number, what, share)

        left = math.inf if settings.limit_s is None else settings.limit_s - (time.perf_counter() - begin)
        record.cells.append(run_case(case, settings, progress=report, limit_s=left / (len(cases) - number)))
        if done is not None:
            done(record.cells[-1])
        gc.collect()
    record.parts.append(_part(begin, started, dataclasses.asdict(settings)))
    return record


def _require_ours(cases: Sequence[BenchCase], settings: Settings) -> None:
    ours = [name for name in settings.providers if name in providers.OURS]
    supports = [chunkattn.supports(case.problem(settings.device)) for case in cases if ours]
    if supports and not any(supports):
        raise chunkattn.UnsupportedError(f"{cases[0].key}: {'; '.join(supports[0].reasons)}")


def run_micro(tasks: Iterable[micro.Task], effort: Effort) -> Record:
    """Times micro-benchmarks into a record."""
    begin, started = time.perf_counter(), _now()
    record = Record(micro=micro.run(effort, list(tasks)))
    record.parts.append(_part(begin, started, {"effort": dataclasses.asdict(effort)}))
    return record


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _part(begin: float, started: str, settings: dict[str, object]) -> Part:
    return Part(
        command=machine.command(),
        started=started,
        seconds=time.perf_counter() - begin,
        machine=machine.describe(),
        versions=machine.versions(),
        settings=settings,
    )


def run_case(
    case: BenchCase,
    settings: Settings,
    *,
    progress: Progress | None = None,
    extra: dict[str, Provider] | None = None,
    limit_s: float = math.inf,
) -> Cell:
    """Measures one case with every provider that can do it.

    Args:
        case: what to measure.
        settings: with whom and how long.
        progress: see `Progress`.
        extra: providers beside the registered ones, by key.
        limit_s: seconds for this case, see `Settings`.
    """
    begin = time.perf_counter()
    tell: Progress = progress or (lambda what, share: None)
    counts, device = work.count(case), torch.device(settings.device)
    tell("building inputs", 0.0)
    sets = input_sets(case, device, most=settings.max_buffers, max_bytes=_MAX_BUFFER_BYTES)
    steps = [Step.of(inputs, case) for inputs in sets]
    cell = Cell(
        key=case.key,
        suite=case.suite,
        name=case.name,
        dtype=case.dtype,
        kv_dtype=case.kv_dtype,
        page_size=case.page_size,
        layout=case.layout,
        axes=dict(case.axes),
        requests=[list(group) for group in case.requests],
        heads=dataclasses.asdict(case.heads),
        flops=counts.flops,
        bytes=counts.bytes,
        kv_bytes=counts.kv_bytes,
        exps=counts.exps,
        buffers=len(sets),
        threads=torch.get_num_threads() if device.type == "cpu" else 0,
    )
    here = [name for name in settings.providers if name in providers.for_device(settings.device)]
    modules = {name: providers.load(name) for name in here} | (extra or {})
    contenders: dict[str, Contender] = {}
    for position, (name, module) in enumerate(modules.items()):
        tell(f"checking {module.LABEL}", 0.3 * position / len(modules))
        for graph in (False, True) if settings.device == "cuda" else (False,):
            key, label = (f"{name}+graph", f"{module.LABEL}, graph") if graph else (name, module.LABEL)
            entry = Measured(key, label, "measured")
            cell.providers.append(entry)
            late = time.perf_counter() - begin > _PREPARING * limit_s
            if late and len(contenders) > _ENOUGH_PEERS and module.missing() is None:
                entry.status, entry.reason = "skipped", "no time left on this busy machine"
                continue
            contender = _admit(key, module, case, steps, entry, graph=graph)
            if contender is not None:
                contenders[key] = contender
    with contextlib.ExitStack() as opened:
        if settings.against is not None and device.type == "cpu":
            contenders[rival.NAME] = _rival(settings.against, steps, cell, opened)
        _time(case, cell, contenders, steps, settings, tell, begin + limit_s)
    return cell


def _rival(against: str, steps: list[Step], cell: Cell, opened: contextlib.ExitStack) -> Contender:
    """Starts the other build's process, which ends with `opened`."""
    folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
    process = rival.Process(Path(against))
    opened.callback(process.close)
    contender, error = rival.admit(process, steps, folder)
    cell.providers.append(Measured(rival.NAME, "chunkattn, rival", "measured", error=error))
    return contender


def _time(
    case: BenchCase,
    cell: Cell,
    contenders: dict[str, Contender],
    steps: list[Step],
    settings: Settings,
    tell: Progress,
    deadline: float,
) -> None:
    """The rounds, and what they give: windows, rates, the floor."""
    counts, device = work.count(case), torch.device(settings.device)
    rates = _limits([step.inputs for step in steps], case)
    ceilings = {limit.name: Contender(limit.name, limit.calls) for limit in rates}
    ceilings["paged_read"].renew = lambda: limits.paged_read([step.inputs for step in steps]).calls
    cell.clocks_mhz.append(machine.clock_mhz(device))
    interleave(
        [*contenders.values(), *ceilings.values()],
        settings.effort,
        device=device,
        progress=lambda at, of: tell(f"round {at} of {of}", 0.3 + 0.65 * at / of),
        relocate=(lambda: _move(steps)) if device.type == "cpu" and _streams(counts) else None,
        deadline=deadline,
    )
    cell.clocks_mhz.append(machine.clock_mhz(device))
    for name, contender in contenders.items():
        _settle(cell.provider(name), contender, device)
    for limit in rates:
        entry = Measured(limit.name, limit.unit, "measured", samples=ceilings[limit.name].samples())
        cell.limits[limit.name] = entry
        cell.rates[limit.name] = limit.amount / entry.ceiling_seconds
    bound = work.floor(counts, flops_per_s=cell.rates["matmul"], bytes_per_s=cell.rates["paged_read"])
    cell.floor_s, cell.bound = bound.overlap_s, bound.bound
    for one in cell.providers:
        if one.samples and one.best < 0.8 * cell.floor_s:
            one.notes.append("faster than the machine's measured limits allow: believe the check, not the time")


def _streams(counts: work.Work) -> bool:
    """Whether a case is about memory on any CPU."""
    return counts.flops < _MEMORY_BOUND_INTENSITY * counts.bytes


def _move(steps: list[Step]) -> None:
    for step in steps:
        step.move()


def _limits(sets: list[AttentionInputs], case: BenchCase) -> list[limits.Limit]:
    device = sets[0].q.device
    return [
        limits.matmul(DTYPES[case.dtype], device),
        limits.paged_read(sets),
        limits.copy(device),
        limits.exponentials(device),
    ]


def _admit(
    name: str,
    module: Provider,
    case: BenchCase,
    steps: list[Step],
    entry: Measured,
    *,
    graph: bool,
) -> Contender | None:
    """Prepares a provider on every step and checks its answers; on any trouble writes the reason and returns None.

    With `graph` its calls are CUDA-graph replays.
    """
    reason = module.missing()
    if reason is not None:
        entry.status = "missing"
        entry.reason = f"{reason}; {module.INSTALL}" if module.INSTALL else reason
        return None
    reason = module.refuses(case)
    if reason is not None:
        entry.status, entry.reason = "unsupported", reason
        return None

    def prepared(step: Step) -> Call:
        call = module.prepare(step.inputs)
        return captured(call) if graph else call

    calls: list[Call] = []
    watch = Watch(steps)
    try:
        for step in steps:
            calls.append(prepared(step))
            watch.admit(step, calls[-1])
        entry.peak_bytes = peak_bytes(calls[0], steps[0].inputs.q.device)
    except gate.Refused as error:
        entry.status, entry.reason = "refused", str(error)
        return None
    except Exception as error:  # a peer may raise anything; the run goes on without it
        first_line = next(iter(str(error).strip().splitlines()), "")
        entry.status, entry.reason = "failed", f"{type(error).__name__}: {first_line}"
        return None
    entry.error = watch.error
    return Contender(name, calls, watch, renew=lambda: [prepared(step) for step in steps])


def _settle(entry: Measured | None, contender: Contender, device: torch.device) -> None:
    """Writes a contender's windows into its entry, unless a timed call gave a wrong answer."""
    assert entry is not None
    if contender.refused:
        entry.status, entry.reason = "refused", contender.refused
        return
    entry.samples, entry.awake = contender.samples(), contender.awake
    if contender.awake < _ASLEEP and device.type == "cpu":
        entry.notes.append(
            f"its thread ran only {contender.awake:.0%} of the time: it waits or sleeps, or the machine was taken away"
        )

"""Tunes a backend's settings for the batches of one key at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chunkattn.bench.case import BenchCase
from chunkattn.planning.tuning_table import TuningEntry, TuningKey
from chunkattn.planning.work import HEADER_WORDS, WorkSpec
from chunkattn.tuning import timeline
from chunkattn.tuning.problem import spec_of
from chunkattn.tuning.search import OutOfTime, Search, Verdict, least_measurements
from chunkattn.tuning.trials import Trials

MOST_CANDIDATES = 16
_WINDOW = 0.02  # seconds of one measurement; at least one call
_FACTORS = ((0.7, 1.3), (1.6, 0.6))  # of a chunk's tokens or the number of decodes, and of histories
_HOPEFUL = 1.25  # times the best modelled time; nobody slower is measured


@dataclass(frozen=True)
class Job:
    """Batches whose settings are chosen together.

    Attributes:
        key: of the table.
        module: the backend's.
        cases: the batches of the first pass; `others` of the second.
        settings: what is measured, the default first.
        possible: settings of the backend's space.
        distinct: of those, how many cut the batches differently.
        round_seconds: that measuring one setting on every batch takes at least, as far as can be known before.
    """

    key: TuningKey
    module: Any
    cases: tuple[BenchCase, ...]
    settings: tuple[Mapping[str, int], ...]
    possible: int
    distinct: int
    others: tuple[BenchCase, ...] = ()
    round_seconds: float = 0.0

    @property
    def least_seconds(self) -> float:
        """With less there is no point in beginning."""
        return least_measurements(len(self.settings), 1) * self.round_seconds


@dataclass(frozen=True)
class Outcome:
    """What became of a job: an entry for the table, None where time ran out."""

    job: Job
    verdict: Verdict
    entry: TuningEntry | None = field(default=None)


def jobs(module: Any, cases: Sequence[BenchCase], device: str) -> Iterator[Job]:
    """Cases by key, with the settings that are worth measuring."""
    groups: dict[TuningKey, list[BenchCase]] = {}
    for case in cases:
        spec = spec_of(case, device)
        key = module.tuning_key(spec, module.mix_class(spec, case.q_lens, case.kv_lens))
        groups.setdefault(key, []).append(case)
    for key, members in groups.items():
        yield _job(key, module, tuple(members), device)


def _job(key: TuningKey, module: Any, cases: tuple[BenchCase, ...], device: str) -> Job:
    space = list(module.settings_space(spec_of(cases[0], device)))
    plans: dict[object, tuple[float, Mapping[str, int]]] = {}
    default: object = None
    for values in space:
        with module.with_settings(values):
            made = [module.planned(spec_of(case, device), case.q_lens, case.kv_lens) for case in cases]
        kernel = module.kernel_of(values) if hasattr(module, "kernel_of") else None
        plan = (kernel, *((spec.num_workers, spec.tile_rows, *words[HEADER_WORDS:]) for spec, words in made))
        if plan not in plans:
            modelled = sum(_modelled(spec, words, case) for (spec, words), case in zip(made, cases))
            plans[plan] = modelled, values
        if values is space[0]:
            default = plan
    first = plans.pop(default)
    # Ratios case by case would weigh short batches as much as long ones; the search does that, by measuring.
    others = sorted(plans.values(), key=lambda entry: entry[0])
    limit = _HOPEFUL * min((seconds for seconds, _ in [first, *others]))
    hopeful = [values for seconds, values in others if seconds <= limit]
    return Job(
        key,
        module,
        cases,
        (first[1], *hopeful[: MOST_CANDIDATES - 1]),
        len(space),
        len(plans) + 1,
        tuple(_others(key, module, cases, device)),
        max(first[0], _WINDOW * len(cases)),
    )


def _others(key: TuningKey, module: Any, cases: Sequence[BenchCase], device: str) -> Iterator[BenchCase]:
    """Batches of the same key with other numbers: what suits just those of the first pass must not win."""
    for case in cases:
        yield case
        for chunk, history in _FACTORS:
            groups = tuple(_scaled(*group, chunk, history) for group in case.requests)
            other = case.but(name=f"{case.name} ×{chunk:g}", requests=groups)
            spec = spec_of(other, device)
            if module.tuning_key(spec, module.mix_class(spec, other.q_lens, other.kv_lens)) == key:
                yield other


def _scaled(count: int, tokens: int, history: int, chunk: float, past: float) -> tuple[int, int, int]:
    """Chunks of other sizes; of decodes another number."""
    if tokens == 1:
        return max(1, round(count * chunk)), 1, round(history * past)
    return count, max(2, round(tokens * chunk)), round(history * past)


def _modelled(spec: WorkSpec, words: Sequence[int], case: BenchCase) -> float:
    rates = timeline.CPU if spec.decode_cost == 0 else timeline.gpu_rates(spec.num_workers)
    heads = case.heads
    dims = heads.head_dim + heads.head_dim_v
    element = spec_of(case, "cpu").kv_dtype.itemsize
    return timeline.seconds(
        spec, words, case.q_lens, case.kv_lens, row_dims=dims, key_bytes=dims * element, rates=rates
    )


def tune(
    job: Job,
    *,
    device: str,
    deadline: float,
    progress: Callable[[float], None] = lambda share: None,
    seed: int = 0,
    window: float = _WINDOW,
) -> Outcome:
    """Measures a job's settings and chooses.

    Args:
        job: what to tune.
        device: "cpu" or "cuda".
        deadline: on the monotonic clock.
        progress: called with the share that is done.
        seed: of the order of measurements.
        window: seconds of one measurement; at least one call.

    Raises:
        Refused: the default itself gives a wrong answer.
    """
    try:
        trials = Trials(job.key.backend, job.module, job.cases, job.settings, job.others, window, device, deadline)
    except OutOfTime:
        return Outcome(job, Verdict.cut_short({}))
    search = Search(
        trials.measure,
        len(job.settings),
        len(job.cases),
        renew=trials.renew,
        deadline=deadline,
        progress=progress,
        seed=seed,
    )
    verdict = search.run()
    if not verdict.complete:
        return Outcome(job, verdict)
    entry = TuningEntry(dict(job.settings[verdict.winner]), max(verdict.gain, 1.0), verdict.spread, time.time())
    return Outcome(job, verdict, entry)

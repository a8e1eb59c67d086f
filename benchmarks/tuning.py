"""What `chunkattn tune kernels` is worth on the CPU backend, and whether noise can fool it.

    python benchmarks/tuning.py noisy --output F             # 20 runs beside a busy process
    python benchmarks/tuning.py judge --output F             # on a quiet machine: is anything they accepted slower?
    python benchmarks/tuning.py planted --output F           # a default that is planted badly
    python benchmarks/tuning.py held-out --output F          # tuned settings on batches that the tuner never saw

Results of several calls are gathered in one file, and what it has is not done again: with `--limit S` a call begins
nothing new after S seconds, and the next one goes on. A key whose time runs out leaves no result.

Settings are judged in interleaved pairs against the default: `slower` counts those that lose on some batch by more than
the spread of two takes of the default, at least 2 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from chunkattn.backends import load
from chunkattn.bench import machine
from chunkattn.bench.case import BenchCase, Heads
from chunkattn.planning.tuning_table import TuningKey
from chunkattn.tuning.kernels import Job, jobs, tune
from chunkattn.tuning.problem import MIXES, parse_mix, spec_of
from chunkattn.tuning.trials import Trials

HEADS = Heads(16, 4, 64, 64)
# Batches of every class that are none of the tuner's.
HELD_OUT = (
    *("3x1+700", "6x1+1500", "1x1+3000", "12x1+1200", "24x1+600", "10x1+3600", "14x1+2400"),
    *("1x48+0", "1x96+300", "1x384+1000", "3x128+700", "1x320+0"),
    *("1x48+100,6x1+300", "1x96+0,3x1+900", "1x384+700,12x1+800", "2x128+1500,20x1+1000"),
)
# Fewer of the tuner's own, for many short runs: one or two of each class.
NOISY = (
    *("4 decodes at 512", "2 decodes at 2k", "16 decodes at 2k", "chunk 64 after 128", "chunk 256"),
    *("chunk 512 after 2k", "chunk 32 and 4 decodes", "chunk 256 and 16 decodes"),
)
PLANTED: tuple[tuple[str, dict[str, int]], ...] = (
    ("prefill-large", {"threads": 1}),
    ("decode-large", {"threads": 1}),
    ("prefill-large", {"tile_kib": 16, "tile_share": 256}),
    ("decode-large", {"items_per_worker": 64, "min_split": 128}),
)
BUSY = "import torch; torch.set_num_threads(1); a = torch.randn(700, 700)\nwhile True: a = (a @ a).clamp(-1, 1)"
PAIRS = 15


def cases(mixes: Mapping[str, Sequence[tuple[int, int, int]]]) -> list[BenchCase]:
    return [BenchCase("tune", name, tuple(groups), HEADS) for name, groups in mixes.items()]


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other processes that multiply matrices without pause."""
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        time.sleep(2.0)  # until they have imported torch
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def compare(module: Any, members: Sequence[BenchCase], values: Mapping[str, int]) -> dict[str, Any]:
    """The default by other settings, each time between two takes of the default."""
    default = next(iter(module.settings_space(spec_of(members[0], "cpu"))))
    if dict(values) == default:
        return {"default_by_tuned": dict.fromkeys((case.name for case in members), 1.0), "spread": 0.0}
    trials = Trials("cpu", module, members, (default, values), seconds=0.01)
    logs: dict[str, list[float]] = {case.name: [] for case in members}
    noise: list[float] = []
    for _ in range(PAIRS):
        for index, case in enumerate(members):
            first, mine, second = (trials.measure(candidate, index) for candidate in (0, 1, 0))
            logs[case.name].append((math.log(first / mine) + math.log(second / mine)) / 2)
            noise.append(abs(math.log(first / second)))
    ratios = {name: math.exp(median(values)) for name, values in logs.items()}
    return {"default_by_tuned": ratios, "spread": median(noise)}


def noisy(found: Sequence[Job], number: int, seconds: float) -> dict[str, Any]:
    """One tuner run beside a busy process; the class of batches and the order change from run to run."""
    job = found[number % len(found)]
    with busy(1):
        outcome = tune(job, device="cpu", deadline=time.monotonic() + seconds, seed=number, window=0.01)
    verdict = outcome.verdict
    row = described(job, number) | {"winner": verdict.winner, "complete": verdict.complete, "reason": verdict.reason}
    if verdict.winner:
        row |= {"values": dict(job.settings[verdict.winner]), "claimed": verdict.gain, "spread_then": verdict.spread}
    return row


def judge(module: Any, rows: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Compares what noisy runs accepted with the default, on a machine that is quiet now."""
    found = {job.key.mix_class: job for job in own_jobs(module)}
    for row in rows:
        if row["winner"] and "default_by_tuned" not in row:
            row |= compare(module, found[row["mix_class"]].cases, row["values"])
            yield


def own_jobs(module: Any) -> Iterator[Job]:
    return jobs(module, cases({name: MIXES[name] for name in NOISY}), "cpu")


def described(job: Job, number: int) -> dict[str, Any]:
    return {"run": number, "mix_class": job.key.mix_class, "candidates": len(job.settings)}


class Planted:
    """The backend with another default."""

    def __init__(self, module: Any, bad: Mapping[str, int]) -> None:
        self._module, self._bad = module, dict(bad)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def settings_space(self, spec: Any) -> Iterator[dict[str, int]]:
        space = list(self._module.settings_space(spec))
        bad = {**space[0], **self._bad}
        yield bad
        yield from (values for values in space if values != bad)


def planted(module: Any, seconds: float, rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Bad defaults: one thread; tiles that are far too small or too large; splits that are far too short."""
    done = [(row["mix_class"], row["planted"]) for row in rows]
    for mix, bad in PLANTED:
        if (mix, bad) in done:
            continue
        job = next(job for job in own_jobs(Planted(module, bad)) if job.key.mix_class == mix)
        outcome = tune(job, device="cpu", deadline=time.monotonic() + seconds)
        verdict, values = outcome.verdict, dict(job.settings[outcome.verdict.winner])
        if verdict.complete:
            row = {"mix_class": mix, "planted": bad, "values": values, "gain": verdict.gain}
            yield row | {"spread": verdict.spread, "reason": verdict.reason}


def held_out(module: Any, seconds: float, rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Tunes on the tuner's batches, compares on others of the same class."""
    others: dict[TuningKey, list[BenchCase]] = {}
    for case in cases({text: parse_mix(text) for text in HELD_OUT}):
        spec = spec_of(case, "cpu")
        key = module.tuning_key(spec, module.mix_class(spec, case.q_lens, case.kv_lens))
        others.setdefault(key, []).append(case)
    done = [row["mix_class"] for row in rows]
    for job in own_jobs(module):
        if job.key.mix_class in done:
            continue
        outcome = tune(job, device="cpu", deadline=time.monotonic() + seconds)
        verdict, values = outcome.verdict, job.settings[outcome.verdict.winner]
        if verdict.complete:
            row = described(job, 0) | {"values": dict(values), "gain": verdict.gain, "reason": verdict.reason}
            yield row | compare(module, others[job.key], values)


def noisy_runs(module: Any, seconds: float, rows: Sequence[dict[str, Any]], runs: int) -> Iterator[dict[str, Any]]:
    found = list(own_jobs(module))
    for number in range(len(rows), runs):
        yield noisy(found, number, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("noisy", "judge", "planted", "held-out"))
    parser.add_argument("--runs", type=int, default=20, help="noisy: go on until there are so many")
    parser.add_argument("--seconds", type=float, default=60.0, help="most of one key")
    parser.add_argument("--limit", type=float, default=math.inf, help="begin nothing new after so many seconds")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    module: Any = load("cpu")
    if not module.supports(spec_of(cases(MIXES)[0], "cpu")):
        parser.error("the native core is not built")
    end = time.monotonic() + options.limit
    record = json.loads(options.output.read_text()) if options.output.exists() else {"machine": machine.describe()}
    commands = record.setdefault("commands", [])
    commands += {machine.command("python benchmarks/tuning.py")} - set(commands)
    rows = record.setdefault("noisy" if options.what == "judge" else options.what, [])
    steps: Mapping[str, Callable[[], Iterator[dict[str, Any] | None]]] = {
        "noisy": lambda: noisy_runs(module, options.seconds, rows, options.runs),
        "judge": lambda: judge(module, rows),
        "planted": lambda: planted(module, options.seconds, tuple(rows)),
        "held-out": lambda: held_out(module, options.seconds, tuple(rows)),
    }
    for row in steps[options.what]():
        rows += [row] if row else []
        print(row, flush=True)
        write(record, options.output)
        if time.monotonic() > end:
            break
    print(record.get("summary"))


def write(record: dict[str, Any], path: Path) -> None:
    """The file, with what it comes to."""
    judged = [row for what in ("noisy", "held-out") for row in record.get(what, []) if "default_by_tuned" in row]
    slower = [row for row in judged if min(row["default_by_tuned"].values()) < 1 / (1 + max(0.02, row["spread"]))]
    record["summary"] = {
        "noisy_runs": len(record.get("noisy", [])),
        "complete": sum(row["complete"] for row in record.get("noisy", [])),
        "accepted": sum(bool(row["winner"]) for row in record.get("noisy", [])),
        "judged": len(judged),
        "slower": len(slower),
    }
    record["versions"] = machine.versions()
    record["ended"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

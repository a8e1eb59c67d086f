"""The other side of `rival`: times `attention` of whatever chunkattn this process finds, on inputs from a file.

Run as a script in a process of its own; it uses only the public operator, so that any build can be measured. Commands
are JSON lines on standard input, answers JSON lines on standard output.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != _HERE]


def _timing() -> ModuleType:
    """The clock of the measuring build, loaded beside the package under test."""
    spec = importlib.util.spec_from_file_location("bench_timing", _HERE / "timing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class Server:
    """Holds the prepared steps and answers commands."""

    def __init__(self) -> None:
        import torch

        import chunkattn

        self.torch, self.package, self.timing = torch, chunkattn, _timing()
        self.steps: list[dict[str, Any]] = []
        self.turn = 0

    def load(self, file: str, threads: int) -> dict[str, Any]:
        """Reads inputs; they lie in new memory each time. Returns where the package comes from."""
        self.torch.set_num_threads(threads)
        steps = self.torch.load(file, weights_only=True)
        for step in steps:
            q, v_cache = step["batch"][0], step["batch"][2]
            step["out"] = self.torch.empty(*q.shape[:2], v_cache.shape[3], dtype=q.dtype)
        self.steps, self.turn = steps, 0
        return {"package": str(self.package.__file__)}

    def run(self) -> Any:
        """The step whose turn it is."""
        step = self.steps[self.turn % len(self.steps)]
        self.package.attention(*step["batch"], **step["options"], out=step["out"])
        return step["out"]

    def before(self) -> None:
        """Disturbs what the measuring process disturbs: some query rows, and the output."""
        self.turn += 1
        step = self.steps[self.turn % len(self.steps)]
        q = step["batch"][0]
        if q.shape[0]:
            begin = random.randrange(q.shape[0])
            q[begin : begin + 1 + random.randrange(max(1, q.shape[0] // 4))].neg_()
        step["out"].fill_(float("nan"))

    def window(self, seconds: float, min_calls: int) -> dict[str, Any]:
        """One window; its fields."""
        return dict(vars(self.timing.window(self.run, seconds=seconds, min_calls=min_calls, before=self.before)))

    def save(self, file: str) -> dict[str, Any]:
        """Writes the outputs of all steps, as loaded."""
        outs = []
        for _ in self.steps:
            outs.append(self.run())
            self.turn += 1
        self.torch.save(outs, file)
        return {}


def main() -> None:
    """Serves until standard input ends."""
    server = Server()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(server, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

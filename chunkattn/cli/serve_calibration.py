"""The cost model of a comparison: kept in a file as soon as it is measured, and taken from there by the next run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from chunkattn.atomic_file import write_atomically
from chunkattn.bench import machine as bench_machine
from chunkattn.cli.serve_view import ServeView
from chunkattn.models import Model
from chunkattn.simulation import Calibration, CostModel, Setting, TraceRequest

_LONGEST_MEASURED = 1024  # prompt tokens of a step; the fit goes on from there, a step of 8192 takes half a minute
_RANGES = ("longest_chunk", "longest_context", "most_decodes")


def steps_wanted(
    trace: Sequence[TraceRequest], settings: Sequence[Setting], max_num_seqs: int, *, simulated: bool
) -> dict[str, int]:
    """The range of steps that a run needs predicted; to choose a rate for a real model, small steps are enough."""
    longest_prompt = max(request.num_prompt_tokens for request in trace)
    budgets = [longest_prompt if setting.token_budget is None else setting.token_budget for setting in settings]
    return {
        "longest_chunk": min(longest_prompt, max(budgets), _LONGEST_MEASURED if simulated else 128),
        "longest_context": max(request.num_prompt_tokens + request.num_output_tokens for request in trace),
        "most_decodes": min(max_num_seqs if simulated else 4, len(trace)),
    }


class CalibrationFile:
    """A file with a cost model that may be there.

    Attributes:
        path: where it is, or will be.
    """

    def __init__(self, path: Path, *, chosen: bool) -> None:
        """Names the file.

        Args:
            path: where it is, or will be.
            chosen: whether the user named it: then it is taken as it is or refused, and not measured again.
        """
        self.path = path
        self._chosen = chosen

    def cost_model(self, model: Model, wanted: dict[str, int], page_size: int, seed: int, view: ServeView) -> CostModel:
        """The file's, if that is of this model on this machine; else measures it and writes the file at once.

        Args:
            model: whose steps.
            wanted: from `steps_wanted`.
            page_size: of the cache.
            seed: of the held-out steps.
            view: shows the progress.

        Raises:
            ValueError: a file that the user named and that is something else.
        """
        facts = {**_facts(model), "page_size": page_size}
        known = self._read(facts, wanted)
        if known is not None:
            view.say(f"Cost model: {self.path}, measured {known.facts.get('measured', 'earlier')}")
            return known
        calibration = Calibration(model.decoder, page_size=page_size, seed=seed, **wanted)
        steps = len(calibration.shapes) + len(calibration.held_out)
        view.begin(f"measuring {steps} steps of the model", steps, "steps")
        cost = calibration.run(view.advance)
        now = time.strftime("%Y-%m-%d %H:%M")
        cost = replace(cost, facts={**cost.facts, **facts, **wanted, "measured": now})
        write_atomically(self.path, cost.to_json())
        view.say(f"Cost model: measured and kept in {self.path}")
        return cost

    def _read(self, facts: dict[str, Any], wanted: dict[str, int]) -> CostModel | None:
        if not self.path.exists():
            return None
        if self._chosen:
            cost = CostModel.read(self.path)
            for name in ("model", "dtype", "device"):
                if cost.facts.get(name) != facts[name]:
                    raise ValueError(
                        f"calibration: expected a cost model of {name} {facts[name]} in {self.path}, "
                        f"got {cost.facts.get(name)}"
                    )
            return cost
        try:
            cost = CostModel.read(self.path)
        except ValueError:
            return None
        same = all(cost.facts.get(name) == value for name, value in facts.items())
        return cost if same and all(cost.facts.get(name, 0) >= wanted[name] for name in _RANGES) else None


def _facts(model: Model) -> dict[str, Any]:
    """What step times depend on."""
    versions = bench_machine.versions()
    return {
        "model": model.config.name,
        "dtype": str(model.decoder.dtype).removeprefix("torch."),
        "device": str(model.decoder.device),
        "backend": model.decoder.backend or "",
        "processor": bench_machine.describe()["processor"],
        "threads": torch.get_num_threads(),
        "versions": {name: versions[name] for name in ("chunkattn", "torch")},
    }

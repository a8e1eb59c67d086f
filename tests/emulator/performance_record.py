"""The performance record of a kernel without a GPU: what it executes and what ptxas makes of it, against a baseline.

It says nothing about time. It says that a change made a kernel execute more instructions, conflict on more banks,
touch more sectors, need more registers or spill, before a GPU is at hand.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .ptx_cache import ptxas_resources
from .report import LaunchResult
from .snippet import ptxas_path

BASELINES = Path(__file__).parent / "baselines"
UPDATE_VARIABLE = "CHUNKATTN_EMULATOR_UPDATE_BASELINES"
# Growth that passes: counts vary a little with the compiler's patch level, spills and conflicts must not come back.
TOLERANCE = 0.02


def record(result: LaunchResult, ptx: str, arch: str) -> dict[str, Any]:
    """Counters of one launch (made with `count_memory`) and, where ptxas is installed, the kernel's resources."""
    counters = {name: value for name, value in result.counters.items() if name != "instructions"}
    counters.update({f"instructions_{name}": n for name, n in result.counters["instructions"].items()})
    values: dict[str, Any] = {"kernel": result.kernel, "arch": arch, "counters": dict(sorted(counters.items()))}
    if ptxas_path() is not None:
        values["resources"] = ptxas_resources(ptx, arch)[result.kernel]
    return values


def growth(now: dict[str, Any], baseline: dict[str, Any]) -> list[str]:
    """What has grown beyond the tolerance, one line each."""
    worse = []
    for section in ("counters", "resources"):
        for name, before in baseline.get(section, {}).items():
            after = now.get(section, {}).get(name)
            if after is not None and after > before * (1 + TOLERANCE):
                worse.append(f"{section}.{name}: {before} -> {after}")
    return worse


def require_no_growth(name: str, now: dict[str, Any]) -> None:
    """Compares with baselines/<name>.json; writes it instead if CHUNKATTN_EMULATOR_UPDATE_BASELINES is set.

    Raises:
        AssertionError: a figure has grown, or there is no baseline.
    """
    path = BASELINES / f"{name}.json"
    if os.environ.get(UPDATE_VARIABLE):
        BASELINES.mkdir(exist_ok=True)
        path.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    assert path.exists(), f"no baseline {path}: set {UPDATE_VARIABLE}=1 to write it"
    worse = growth(now, json.loads(path.read_text()))
    assert not worse, f"{name} has grown; if on purpose, set {UPDATE_VARIABLE}=1\n" + "\n".join(worse)

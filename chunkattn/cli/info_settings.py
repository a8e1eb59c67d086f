"""What `chunkattn info` says of measured settings: which ones a problem gets and why, and what the tables hold."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import chunkattn
from chunkattn.bench.case import BenchCase
from chunkattn.cli.tune_kernels import changed
from chunkattn.env import SETTINGS
from chunkattn.planning import measured
from chunkattn.planning.tuning_table import OFF, TuningTable
from chunkattn.tuning.problem import MIXES


def chosen_settings(module: Any, spec: chunkattn.AttentionSpec) -> Iterator[str]:
    """A line for each class of batches of the problem.

    Args:
        module: the backend's; one without settings has no lines.
        spec: the problem.
    """
    if not hasattr(module, "settings_space"):
        return
    default = next(iter(module.settings_space(spec)))
    cases = (BenchCase("info", name, groups) for name, groups in MIXES.items())
    for mix in dict.fromkeys(module.mix_class(spec, case.q_lens, case.kv_lens) for case in cases):
        found = measured.in_force().get(module.tuning_key(spec, mix))
        if found is None:
            yield f"{mix:<14} default: never measured here"
            continue
        entry = found.entry
        when = time.strftime("%Y-%m-%d", time.gmtime(entry.measured))
        spread = f" (spread {entry.spread:.1%})" if entry.spread else ""  # 0: not measured
        if all(default.get(name) == value for name, value in entry.values.items()):
            yield f"{mix:<14} default, {found.source}: nothing was faster on {when}{spread}"
        else:
            yield (
                f"{mix:<14} {changed(entry.values, default)}; {found.source}: {entry.gain - 1:.1%} faster than the "
                f"default on {when}{spread}"
            )


def tables() -> Iterator[str]:
    """A line for each table, and one for each backend and device in it."""
    if SETTINGS.tuning == OFF:
        yield "none: CHUNKATTN_TUNING=off"
        return
    for source, path in (("shipped", measured.SHIPPED), ("tuned", measured.user_table())):
        entries = list(TuningTable(path)) if path.exists() else []
        state = "" if path.exists() else ", not there"
        yield f"{source:<8} {path}{state}: {len(entries)} entries, {path.stat().st_size if path.exists() else 0} bytes"
        for (backend, device, library), count in sorted(Counter((*key[:2], key.library) for key in entries).items()):
            stale = "" if library == chunkattn.__version__ else f", of version {library}: not used"
            yield f"         {count} of {backend} on {device}{stale}"

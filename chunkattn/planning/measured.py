"""Measured settings that are in force in this process: the user's table before the one that came with the package.

Both are read once, when a backend first asks. Nothing is measured here, and nothing is read again while requests are
served.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import NamedTuple

import chunkattn
from chunkattn.env import SETTINGS
from chunkattn.extras import MissingExtraError
from chunkattn.planning.tuning_table import FILE_NAME, OFF, TuningEntry, TuningKey, TuningTable, table_path

SHIPPED = Path(__file__).with_name("shipped_settings.json")


class Found(NamedTuple):
    """An entry and the table it is from: "tuned" (the user's) or "shipped"."""

    entry: TuningEntry
    source: str


@functools.cache
def in_force() -> dict[TuningKey, Found]:
    """Every entry of this version of the package, whatever the device."""
    if SETTINGS.tuning == OFF:
        return {}
    found: dict[TuningKey, Found] = {}
    for source, path in (("shipped", SHIPPED), ("tuned", user_table())):
        table = TuningTable(path)
        for key in table:
            entry = table.find(key)
            if entry is not None and key.library == chunkattn.__version__:
                found[key] = Found(entry, source)
    return found


def user_table() -> Path:
    """The user's table, which need not exist. Where `chunkattn tune` puts it, without the packages that it needs: who
    serves may have them in another environment."""
    try:
        return table_path()
    except MissingExtraError:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return Path(base) / "chunkattn" / FILE_NAME

"""Measured settings that outlive a process: one JSON file, one entry a key.

Entries stand alone. One is valid as long as everything its key names is the same (device, driver, library, kernel,
shape); another entry of another device or version beside it does no harm and is kept, since a home directory may be
shared by machines. What cannot be read is skipped with a warning and never stops anybody.

Saving merges under a lock and replaces the file in one step, so concurrent writers lose nothing and a killed one leaves
the old file. Nothing is measured here.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_type_hints

from chunkattn.atomic_file import SCRATCH, write_atomically
from chunkattn.env import SETTINGS
from chunkattn.extras import require

SCHEMA = 1
FORMAT = "chunkattn-tuning"
FILE_NAME = "tuning.json"
OFF = "off"  # in CHUNKATTN_TUNING: no measured settings in this process
_LOCK_SECONDS = 10.0
_MOST = (1 << 31) - 1
_LONGEST = 1e12  # seconds, and any ratio

Values = Mapping[str, int]


class TuningKey(NamedTuple):
    """Everything a measured setting depends on; it is of no use to anything else. A tuple, for its fast hash.

    Attributes:
        backend: that the setting is of.
        device: its name, and what of it is used (threads, instruction set).
        driver: of the device, "" for a CPU.
        library: version of this package.
        kernel: hash of the kernel's content.
        dtype: of queries and cache.
        head_dim, value_dim: sizes of a head.
        group: query heads a KV head.
        page_class: of page sizes that behave alike.
        mix_class: of batches that behave alike.
    """

    backend: str
    device: str
    driver: str
    library: str
    kernel: str
    dtype: str
    head_dim: int
    value_dim: int
    group: int
    page_class: str
    mix_class: str


@dataclass(frozen=True)
class TuningEntry:
    """A measured setting.

    Attributes:
        values: the setting, integers by name.
        gain: time of the default divided by its own, measured side by side; at least 1.
        spread: relative spread of that measurement; 0 where there was none, as nothing seemed faster at first sight.
        measured: when, seconds since 1970.
    """

    values: Values
    gain: float
    spread: float
    measured: float


class TuningTableWarning(UserWarning):
    """Something in a table, or a table, could not be used."""


def table_path(explicit: Path | str | None = None) -> Path:
    """Where the user's table is: the argument, CHUNKATTN_TUNING, CHUNKATTN_CACHE, or the user's cache folder."""
    if explicit is not None:
        return Path(explicit)
    if SETTINGS.tuning is not None and SETTINGS.tuning != OFF:
        return Path(SETTINGS.tuning)
    if SETTINGS.cache is not None:
        return Path(SETTINGS.cache) / FILE_NAME
    platformdirs = require("platformdirs", extra="tune", purpose="finding the table of measured settings")
    return Path(platformdirs.user_cache_dir("chunkattn", appauthor=False)) / FILE_NAME


def writer() -> ModuleType:
    """What saving needs beyond reading.

    Raises:
        MissingExtraError: it is not installed.
    """
    return require("filelock", extra="tune", purpose="saving measured settings")


class TuningTable:
    """Entries in memory, read once; `find` is a dictionary lookup and touches no file.

    Attributes:
        path: the file, absolute, which need not exist.
        refuses: why the file must not be replaced, as far as reading it tells; "" if it may.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))  # a link stays one when the file is replaced
        content = _read(self.path)
        self.refuses = content.refuses
        self._entries: dict[TuningKey, TuningEntry] = content.entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TuningKey]:
        return iter(self._entries)

    def find(self, key: TuningKey) -> TuningEntry | None:
        """The entry of exactly this key; None is a miss."""
        return self._entries.get(key)

    def save(self, new: Mapping[TuningKey, TuningEntry]) -> bool:
        """Adds entries to the file, beside what others have written meanwhile; of equal keys the later measured stays.

        Returns:
            Whether the file has them. Where it cannot be written (read-only folder, full disk, a lock nobody gives
            back) a warning says so; the entries hold in this process all the same.

        Raises:
            ValueError: an entry that could not be read back.
            MissingExtraError: the package that locks the file is not installed.
        """
        for entry in new.values():
            problem = _problem(entry)
            if problem:
                raise ValueError(f"new: expected {problem}, got {entry}")
        self._entries = _newest(self._entries, new)
        return self._rewrite(lambda there: _newest(there, self._entries))

    def drop(self, keys: Collection[TuningKey]) -> bool:
        """Takes entries out, of the file too; returns whether that was written."""

        def without(entries: Mapping[TuningKey, TuningEntry]) -> dict[TuningKey, TuningEntry]:
            return {key: entry for key, entry in entries.items() if key not in keys}

        self._entries = without(self._entries)
        return self._rewrite(without)

    def _rewrite(self, change: Callable[[dict[TuningKey, TuningEntry]], dict[TuningKey, TuningEntry]]) -> bool:
        """Replaces the file by a change of what it holds now."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path):
                there = _read(self.path)
                if there.refuses:
                    raise OSError(there.refuses)
                if there.worth_keeping:
                    copy = shutil.copy2(self.path, self.path.with_name(self.path.name + ".unreadable"))
                    _warn(f"{self.path} is replaced; what it held is kept in {copy}")
                entries = change(there.entries)
                write_atomically(self.path, _text(entries, there.foreign))
                _sweep(self.path)
        except OSError as error:
            _warn(f"{self.path} was not written: {error}; the settings hold for this process only")
            return False
        self._entries = entries
        return True


@dataclass(frozen=True)
class _Content:
    """What a file holds.

    Attributes:
        entries: that are understood.
        foreign: of other programs or versions, kept as they are.
        refuses: why the file must not be replaced; "" if it may.
        worth_keeping: it is no table, so a copy is kept when it is replaced.
    """

    entries: dict[TuningKey, TuningEntry] = field(default_factory=dict)
    foreign: list[Any] = field(default_factory=list)
    refuses: str = ""
    worth_keeping: bool = False


_KEY_TYPES = get_type_hints(TuningKey)


def _read(path: Path) -> _Content:
    """Never raises; warns of what it skips."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is no regular file")  # nor must a device or a pipe be replaced by one
        data = path.read_bytes()
    except FileNotFoundError:
        return _Content()
    except OSError as error:
        _warn(f"{path} cannot be read: {error}")
        return _Content(refuses=f"it cannot be read: {error}")
    try:
        table = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        _warn(f"{path} is damaged and ignored: {error}")
        return _Content(worth_keeping=bool(data))
    if not isinstance(table, dict) or table.get("format") != FORMAT or type(table.get("schema")) is not int:
        _warn(f"{path} is no table of measured settings and ignored")
        return _Content(worth_keeping=True)
    if table["schema"] > SCHEMA:
        _warn(f"{path} has schema {table['schema']}, this version reads {SCHEMA}; ignored")
        return _Content(refuses=f"it has schema {table['schema']}, of a later version")
    rows = table.get("entries")
    if table["schema"] != SCHEMA or not isinstance(rows, list):
        _warn(f"{path} has no entries of schema {SCHEMA}; ignored")
        return _Content(worth_keeping=True)
    entries: dict[TuningKey, TuningEntry] = {}
    foreign: list[Any] = []
    for row in rows:
        pair = _parse(row)
        if pair is None:
            foreign.append(row)
        else:
            entries = _newest(entries, dict([pair]))
    if foreign:
        _warn(f"{path}: {len(foreign)} of {len(rows)} entries are not understood and skipped")
    return _Content(entries, foreign)


def _parse(row: Any) -> tuple[TuningKey, TuningEntry] | None:
    """An entry of the file; None where a field is missing, unknown, or of another type or range."""
    if not isinstance(row, dict) or set(row) != {"key", "values", "gain", "spread", "measured"}:
        return None
    key, values = row["key"], row["values"]
    if not isinstance(key, dict) or set(key) != set(_KEY_TYPES):
        return None
    if any(type(key[name]) is not kind for name, kind in _KEY_TYPES.items()):
        return None
    if not all(_is_count(value) for value in key.values() if type(value) is int):
        return None
    entry = TuningEntry(values, row["gain"], row["spread"], row["measured"])
    return None if _problem(entry) else (TuningKey(**key), entry)


def _is_count(value: object) -> bool:
    """Whether a backend can take it for a number of something."""
    return type(value) is int and 0 <= value <= _MOST


def _problem(entry: TuningEntry) -> str:
    """What an entry should have been; "" for a good one."""
    values = entry.values
    if not isinstance(values, Mapping) or not values:
        return "values by name"
    if any(type(name) is not str or not _is_count(value) for name, value in values.items()):
        return f"values of integers from 0 to {_MOST}"
    for name, least in (("gain", 1.0), ("spread", 0.0), ("measured", 0.0)):
        number = getattr(entry, name)
        if type(number) not in (int, float) or not least <= number <= _LONGEST:
            return f"a {name} from {least:g} to {_LONGEST:g}"
    return ""


def _newest(
    first: Mapping[TuningKey, TuningEntry], second: Mapping[TuningKey, TuningEntry]
) -> dict[TuningKey, TuningEntry]:
    merged = dict(first)
    for key, entry in second.items():
        if key not in merged or entry.measured >= merged[key].measured:
            merged[key] = entry
    return merged


def _text(entries: Mapping[TuningKey, TuningEntry], foreign: list[Any]) -> str:
    rows = [
        {
            "key": key._asdict(),
            "values": dict(entry.values),
            "gain": entry.gain,
            "spread": entry.spread,
            "measured": entry.measured,
        }
        for key, entry in entries.items()
    ]
    rows.sort(key=lambda row: json.dumps(row["key"], sort_keys=True))
    return json.dumps({"format": FORMAT, "schema": SCHEMA, "entries": rows + foreign}, indent=1) + "\n"


def _sweep(path: Path) -> None:
    """Scratch files of writers that were killed; called under the lock, so nobody is writing one."""
    for scratch in path.parent.glob(f".{glob.escape(path.name)}.*{SCRATCH}"):
        scratch.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the table's lock, which the kernel gives back when its holder dies; the file may stay.

    Raises:
        OSError: the folder does not let one be made, or it was not free in time.
    """
    filelock = writer()
    try:
        with filelock.FileLock(path.with_name(f".{path.name}.lock"), timeout=_LOCK_SECONDS):
            yield
    except filelock.Timeout:
        raise OSError(f"its lock was not free for {_LOCK_SECONDS:g} s") from None


def _warn(text: str) -> None:
    warnings.warn(text, TuningTableWarning, stacklevel=3)

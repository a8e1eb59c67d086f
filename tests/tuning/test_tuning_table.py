"""The table of measured settings: its keys, its places, damage and foreign content."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import timeit
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from table_entries import ENTRY, KEY, numbered

import chunkattn.env
from chunkattn.extras import MissingExtraError
from chunkattn.planning import measured, tuning_table
from chunkattn.planning.tuning_table import (
    FORMAT,
    SCHEMA,
    TuningEntry,
    TuningKey,
    TuningTable,
    TuningTableWarning,
    table_path,
)


def test_a_second_process_finds_what_the_first_saved(path: Path) -> None:
    assert TuningTable(path).save({KEY: ENTRY})
    code = (
        "import sys, pathlib; from chunkattn.planning.tuning_table import *\n"
        "table = TuningTable(pathlib.Path(sys.argv[1]))\n"
        f"print(table.find({KEY!r}))"
    )
    shown = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == repr(ENTRY)


@pytest.mark.parametrize("name", TuningKey._fields)
def test_entries_are_invalid_one_by_one(path: Path, name: str) -> None:
    """Whatever of a key changes, that entry is a miss; the others stay."""
    TuningTable(path).save({KEY: ENTRY, numbered(1): ENTRY})
    found = TuningTable(path)
    value = getattr(KEY, name)
    changed = KEY._replace(**{name: value + 1 if isinstance(value, int) else value + "x"})
    assert found.find(changed) is None
    assert found.find(KEY) == ENTRY
    found.save({changed: replace(ENTRY, gain=2.0)})
    again = TuningTable(path)
    assert (again.find(KEY), again.find(changed), len(again)) == (ENTRY, replace(ENTRY, gain=2.0), 3)
    assert again.drop({KEY})
    assert set(TuningTable(path)) == {numbered(1), changed}


def test_the_later_measurement_stays(path: Path) -> None:
    late, early = replace(ENTRY, measured=2000.0), replace(ENTRY, gain=9.0)
    for first, second in ((late, early), (early, late)):
        TuningTable(path).save({KEY: first})
        TuningTable(path).save({KEY: second})
        assert TuningTable(path).find(KEY) == late


def test_stale_reader_loses_nothing(path: Path) -> None:
    first, second = TuningTable(path), TuningTable(path)
    first.save({numbered(1): ENTRY})
    second.save({numbered(2): ENTRY})
    assert set(TuningTable(path)) == set(second) == {numbered(1), numbered(2)}


def table_text(*rows: Any, **changes: Any) -> str:
    return json.dumps({"format": FORMAT, "schema": SCHEMA, "entries": list(rows), **changes})


def row(**changes: Any) -> dict[str, Any]:
    fields = {"key": KEY._asdict(), "values": {"block_q": 32}, "gain": 1.1, "spread": 0.02, "measured": 1.0}
    return {**fields, **changes}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        b"\xff\xfe",
        b"null",
        b"[]",
        b'{"H100": [1, 2]}',
        b"[" * 100000,
        table_text(row())[:150].encode(),
        table_text(schema=0).encode(),
        table_text(schema="1").encode(),
        table_text(entries={}).encode(),
    ],
    ids=lambda content: repr(content[:14]),
)
def test_a_damaged_or_foreign_file_is_a_miss_then_replaced_with_a_copy_kept(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.warns(TuningTableWarning, match=r"tuning\.json"):
        table = TuningTable(path)
    assert table.find(KEY) is None
    copy = path.with_name("tuning.json.unreadable")
    with pytest.warns(TuningTableWarning) as told:
        assert table.save({KEY: ENTRY})
    assert any(str(one.message) == f"{path} is replaced; what it held is kept in {copy}" for one in told) == bool(
        content
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TuningTable(path).find(KEY) == ENTRY
    assert (copy.read_bytes() if copy.exists() else b"") == content


def test_a_later_schema_is_neither_used_nor_replaced(path: Path) -> None:
    path.parent.mkdir()
    text = table_text(row(), schema=SCHEMA + 1)
    path.write_text(text)
    with pytest.warns(TuningTableWarning, match="has schema 2, this version reads 1"):
        table = TuningTable(path)
    assert len(table) == 0
    with pytest.warns(TuningTableWarning, match="was not written"):
        assert not table.save({KEY: ENTRY})
    assert table.find(KEY) == ENTRY
    assert path.read_text() == text


@pytest.mark.parametrize(
    "bad",
    [
        1,
        {},
        row(extra=1),
        row(key={**KEY._asdict(), "unknown": 1}),
        row(key={**KEY._asdict(), "head_dim": "128"}),
        row(key={**KEY._asdict(), "head_dim": True}),
        row(values={}),
        row(values={"block_q": 1.5}),
        row(values={"block_q": -1}),
        row(values={"block_q": True}),
        row(values={"block_q": 1 << 31}),
        row(key={**KEY._asdict(), "head_dim": 10**30}),
        row(key={**KEY._asdict(), "group": -1}),
        row(gain=10**400),
        row(gain=float("inf")),
        row(gain=0.9),
        row(gain="2"),
        row(gain=float("nan")),
        row(spread=-1),
        row(measured=None),
    ],
    ids=str,
)
def test_one_bad_entry_is_skipped_and_kept_the_others_are_used(path: Path, bad: Any) -> None:
    path.parent.mkdir()
    good = row(key=numbered(1)._asdict())
    path.write_text(table_text(bad, good))
    with pytest.warns(TuningTableWarning, match="1 of 2 entries are not understood and skipped"):
        table = TuningTable(path)
    assert list(table) == [numbered(1)]
    with pytest.warns(TuningTableWarning):
        assert table.save({numbered(2): ENTRY})
    kept = json.loads(path.read_text())["entries"]
    assert len(kept) == 3
    assert json.dumps(bad) in map(json.dumps, kept)


@pytest.mark.parametrize(
    "entry",
    [replace(ENTRY, values={}), replace(ENTRY, gain=0.5), replace(ENTRY, spread=float("inf"))],
    ids=["values", "gain", "spread"],
)
def test_what_could_not_be_read_back_is_refused(path: Path, entry: TuningEntry) -> None:
    with pytest.raises(ValueError, match="new: expected"):
        TuningTable(path).save({KEY: entry})
    assert not path.exists()


def test_a_file_that_cannot_be_read_is_not_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TuningTable(path).save({KEY: ENTRY})
    old = path.read_bytes()

    def refuse(self: Path) -> bytes:
        raise PermissionError(errno.EACCES, "not yours")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        with pytest.warns(TuningTableWarning, match="cannot be read"):
            table = TuningTable(path)
        with pytest.warns(TuningTableWarning, match="was not written"):
            assert not table.save({numbered(1): ENTRY})
    assert path.read_bytes() == old


def test_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def settings(**values: str) -> None:
        empty = {"tuning": None, "cache": None}
        monkeypatch.setattr(tuning_table, "SETTINGS", replace(chunkattn.env.SETTINGS, **{**empty, **values}))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings()
    assert table_path() == tmp_path / "chunkattn" / "tuning.json"
    settings(cache="/c")
    assert table_path() == Path("/c/tuning.json")
    settings(cache="/c", tuning="/t.json")
    assert table_path() == Path("/t.json")
    assert table_path("mine.json") == Path("mine.json")
    monkeypatch.setenv("CHUNKATTN_TUNING", "/e.json")
    assert chunkattn.env.read().tuning == "/e.json"


def test_only_saving_needs_a_package(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that serves reads with what the core needs."""
    TuningTable(path).save({KEY: ENTRY})
    for package in ("filelock", "platformdirs"):
        monkeypatch.setitem(sys.modules, package, None)
    table = TuningTable(path)
    assert table.find(KEY) == ENTRY
    with pytest.raises(MissingExtraError, match=r"saving measured settings needs the package 'filelock'.*\[tune\]"):
        table.save({numbered(1): ENTRY})
    assert set(TuningTable(path)) == {KEY}


def test_a_path_is_the_same_file_after_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    table = TuningTable(Path("t.json"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert table.save({KEY: ENTRY})
    assert table.path == tmp_path / "t.json"
    assert TuningTable(tmp_path / "t.json").find(KEY) == ENTRY


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    link = tmp_path / "t.json"
    link.symlink_to(tmp_path / "team" / "shared.json")
    assert TuningTable(link).save({KEY: ENTRY})
    assert link.is_symlink()
    assert TuningTable(tmp_path / "team" / "shared.json").find(KEY) == ENTRY


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_file_is_neither_read_nor_replaced(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "t.json"
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/null")
    before = os.stat(place)
    with pytest.warns(TuningTableWarning, match="cannot be read: it is no regular file"):
        table = TuningTable(place)
    with pytest.warns(TuningTableWarning, match="was not written"):
        assert not table.save({KEY: ENTRY})
    assert os.stat(place)[:2] == before[:2]  # mode, inode


@pytest.mark.parametrize("xdg", [True, False])
def test_who_serves_looks_where_the_tuner_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xdg: bool) -> None:
    """Without the tuner's packages too: they may be installed in another environment."""
    monkeypatch.setattr(tuning_table, "SETTINGS", chunkattn.env.Settings())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if xdg:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    written = table_path()
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert measured.user_table() == written
    with pytest.raises(MissingExtraError, match=r"needs the package 'platformdirs'.*\[tune\]"):
        table_path()


def test_a_lookup_takes_at_most_a_microsecond(path: Path) -> None:
    """A hit with an equal key of other objects, and a miss, in a table of a thousand; the best of many short runs."""
    TuningTable(path).save({numbered(i): ENTRY for i in range(1000)})
    table = TuningTable(path)
    hit, miss = TuningKey(*json.loads(json.dumps(numbered(500)))), numbered(5000)
    assert table.find(hit) == ENTRY
    path.unlink()  # no file is looked at
    for key in (hit, miss):
        best = min(timeit.repeat(lambda key=key: table.find(key), number=1000, repeat=50)) / 1000
        assert best <= 1e-6

"""Writing the table of measured settings: concurrent and killed writers, full disks, folders that refuse."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from table_entries import ENTRY, KEY, numbered

from chunkattn import atomic_file
from chunkattn.planning import tuning_table
from chunkattn.planning.tuning_table import TuningTable, TuningTableWarning

WRITER = """
import os, pathlib, sys, time
from chunkattn.planning import tuning_table
path, first, mode = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
key = tuning_table.TuningKey("cpu", "d", "", "1", "k", "bfloat16", 64, 64, 1, "16", "m")
entry = tuning_table.TuningEntry({"a": 1}, 1.0, 0.0, 5.0)
def stall(*arguments):
    print("stalled", flush=True)
    time.sleep(60)
if mode in ("replace", "fsync"):
    setattr(os, mode, stall)
if mode == "disk":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
print("ready", flush=True)
sys.stdin.readline()
saved = [tuning_table.TuningTable(path).save({key._replace(mix_class=str(first + i)): entry}) for i in range(50)]
print(all(saved))
"""


def writer(path: Path, first: int, mode: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", WRITER, str(path), str(first), mode]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_two_processes_lose_nothing(path: Path) -> None:
    processes = [writer(path, first) for first in (0, 1000)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60)[0] for process in processes] == ["True\n"] * 2
    assert {key.mix_class for key in TuningTable(path)} == {str(f + i) for f in (0, 1000) for i in range(50)}


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_killed_writer_leaves_the_old_table_and_no_lock(path: Path, moment: str) -> None:
    TuningTable(path).save({KEY: ENTRY})
    old = path.read_bytes()
    process = writer(path, 0, moment)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "stalled\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert path.read_bytes() == old
    assert [p for p in path.parent.iterdir() if p.name.startswith(".tuning.json.") and p.suffix != ".lock"]
    begin = time.monotonic()
    assert TuningTable(path).save({numbered(1): ENTRY})
    assert time.monotonic() - begin < 5
    assert set(TuningTable(path)) == {KEY, numbered(1)}
    assert sorted(p.name for p in path.parent.iterdir()) == [".tuning.json.lock", "tuning.json"]


def test_a_lock_that_nobody_gives_back_costs_bounded_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TuningTable(path).save({KEY: ENTRY})
    monkeypatch.setattr(tuning_table, "_LOCK_SECONDS", 0.2)
    with (
        tuning_table._locked(path),
        pytest.warns(TuningTableWarning, match="lock was not free for"),
    ):
        assert not TuningTable(path).save({numbered(1): ENTRY})
    assert set(TuningTable(path)) == {KEY}


def test_a_file_that_outgrows_the_disk_leaves_the_old_table(path: Path) -> None:
    """The kernel cuts the write short, as a full disk does."""
    TuningTable(path).save({KEY: ENTRY})
    old = path.read_bytes()
    process = writer(path, 0, "disk")
    assert process.communicate("\n", timeout=60)[0] == "False\n"
    assert path.read_bytes() == old
    assert sorted(p.name for p in path.parent.iterdir()) == [".tuning.json.lock", "tuning.json"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_new_table_has_the_mode_of_the_umask_and_a_replaced_one_its_own(path: Path, umask: int, mode: int) -> None:
    """Others who share the cache folder may read it, as any file that the user makes."""
    before = os.umask(umask)
    try:
        TuningTable(path).save({KEY: ENTRY})
        assert path.stat().st_mode & 0o777 == mode
        path.chmod(0o664)
        TuningTable(path).save({numbered(1): ENTRY})
        assert path.stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("call", ["tempfile.mkstemp", "os.fsync", "os.replace"])
def test_any_refusal_while_writing(path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    table = TuningTable(path)
    table.save({KEY: ENTRY})
    old = path.read_bytes()

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        module, name = call.split(".")
        patch.setattr(getattr(atomic_file, module), name, refuse)
        with pytest.warns(TuningTableWarning, match="was not written"):
            assert not table.save({numbered(1): ENTRY})
    assert table.find(numbered(1)) == ENTRY  # this process has it all the same
    assert path.read_bytes() == old
    assert table.save({})  # and the file gets it when it can
    assert TuningTable(path).find(numbered(1)) == ENTRY


@pytest.mark.parametrize("place", ["/proc/chunkattn/tuning.json", "file/tuning.json"])
def test_folders_that_cannot_be(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("a file, no folder")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningTableWarning)
        table = TuningTable(tmp_path / place)
    with pytest.warns(TuningTableWarning, match="was not written"):
        assert not table.save({KEY: ENTRY})
    assert table.find(KEY) == ENTRY


def test_scratch_of_other_tables_in_the_folder_stays(path: Path) -> None:
    path.parent.mkdir()
    others = [path.with_name(name) for name in (".tuning.json.bak", ".tuningXjson.1.new", ".other.json.1.new")]
    for other in others:
        other.write_text("not ours")
    assert TuningTable(path).save({KEY: ENTRY})
    assert all(other.exists() for other in others)

"""What commands write: whole or not at all, and not over what is no file."""

from __future__ import annotations

import stat
from pathlib import Path

import click
import pytest

from chunkattn.atomic_file import require_writable, write_atomically
from chunkattn.cli.one_sentence import one_sentence


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "a.txt"
    write_atomically(target, "one")
    write_atomically(target, b"two")
    assert target.read_text() == "two"
    with pytest.raises(UnicodeEncodeError):
        write_atomically(target, "\ud800")
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        write_atomically(tmp_path / "file", "three")
    assert target.read_text() == "two"
    assert [path.name for path in target.parent.iterdir()] == ["a.txt"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.touch()
    target.chmod(0o604)
    write_atomically(target, "new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o604


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "nothing").symlink_to("/dev/null")
    require_writable(tmp_path / "nothing")
    write_atomically(tmp_path / "nothing", "new")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "full", "new")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_looking_leaves_nothing(tmp_path: Path) -> None:
    require_writable(tmp_path / "deep" / "a.txt")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    for path in (Path("/proc/nowhere/a"), tmp_path / "file" / "a"):
        with pytest.raises(OSError, match=f"{path.name}'$"):
            require_writable(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder"):
        require_writable(tmp_path / "folder")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "not enough memory"),
        (MemoryError("num_pages: expected"), "num_pages: expected"),
        (PermissionError(13, "Permission denied", "/a"), "/a: Permission denied"),
        (FileNotFoundError("model: expected"), "model: expected"),
    ],
)
def test_what_files_and_memory_run_into_is_one_line(error: Exception, line: str) -> None:
    with pytest.raises(click.ClickException, match=f"^{line}$"), one_sentence():
        raise error

"""Where a command's words go: terminals of other encodings, full disks, readers that leave."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMMANDS = (["bench", "list"], ["build", "--list"])


def start(arguments: list[str], stdout: int, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "chunkattn.cli", *arguments]
    merged = {**os.environ, "COLUMNS": "100", **environment}
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, encoding="utf-8", env=merged)


def test_an_encoding_without_the_characters_shows_others() -> None:
    process = start(["bench", "list"], subprocess.PIPE, PYTHONIOENCODING="ascii")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "chunkattn" in out
    assert out.isascii()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_full_disk_is_one_sentence(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        process = start(command, full.fileno())
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err.splitlines()[0] == "Error: No space left on device"
    assert "Traceback" not in err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_reader_that_leaves_is_no_error_to_speak_of(command: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start(command, writer)
    os.close(writer)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err == ""

"""`chunkattn info`, and what is said when an optional package is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import chunkattn
from chunkattn.build.variants import all_variants
from chunkattn.cli.commands import cli
from chunkattn.cli.main import main
from chunkattn.planning import measured


def test_info_names_versions_and_the_chosen_backend() -> None:
    result = CliRunner().invoke(cli, ["info", "--dtype", "float32", "--head-dim", "64"], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert chunkattn.__version__ in result.output
    assert torch.__version__ in result.output
    assert "taken" in result.output
    assert "reference" in result.output
    assert "head dim 64" in result.output


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "chunkattn", "tune", "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: chunkattn tune ")
    assert subprocess.run([sys.executable, "-m", "chunkattn", "nothing"], capture_output=True).returncode == 2


@pytest.mark.parametrize("module", ["chunkattn", "chunkattn.cli"])
def test_a_bad_variable_is_one_sentence(module: str) -> None:
    environment = {**os.environ, "CHUNKATTN_BUILD_JOBS": "many"}
    command = [sys.executable, "-m", module, "build", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "chunkattn: CHUNKATTN_BUILD_JOBS: expected a positive integer, got 'many'\n"


@pytest.mark.parametrize(
    ("asked", "rows", "settings"),
    [
        ("reference", [["reference", "taken"], ["cpu", "capable"]], False),
        ("cpu", [["cpu", "taken"], ["reference", "capable"]], True),
        ("cuda", [["cuda", "refuses"], ["cpu", "capable"], ["reference", "capable"]], False),
    ],
)
def test_info_takes_what_the_environment_asks_for(
    asked: str, rows: list[list[str]], settings: bool, tmp_path: Path
) -> None:
    if find_spec("chunkattn._native") is None:
        pytest.skip("the native core is not built")
    environment = {**os.environ, "CHUNKATTN_BACKEND": asked, "COLUMNS": "120"}
    command = [sys.executable, "-m", "chunkattn", "info"]
    # Not in a checkout, whose sources come first there, built or not.
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.partition("\ncpu: bfloat16")[2].split("\n\n")[0].splitlines()[1:]
    assert [line.split()[:2] for line in lines[: len(rows)]] == rows
    meaning = "calls that name no backend are refused" if asked == "cuda" else "calls that name no backend take it"
    assert lines[len(rows)] == f"CHUNKATTN_BACKEND={asked}: {meaning}"
    assert any("decode-small" in line for line in lines) == settings


def test_info_says_where_the_gpu_kernels_are(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {"plan-sm80": None}
    monkeypatch.setattr("chunkattn.build.store.find", lambda variant: None)
    monkeypatch.setattr(
        "chunkattn.build.builder.unbuildable_reason", lambda variant: reasons.get(variant.name, "nvcc was not found")
    )
    output = CliRunner().invoke(cli, ["info"], env={"COLUMNS": "120"}).output
    *_, heading, first, second, last = output.splitlines()
    assert heading == "GPU kernels"
    assert sorted((first, second)) == [
        "1 variant: built on first use",
        f"{len(all_variants()) - 1} variants: not available: nvcc was not found",
    ]
    assert last == "chunkattn build --list names them"


def test_info_tells_of_a_damaged_table_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "tuning.json"
    table.write_text("{")
    monkeypatch.setattr(measured, "user_table", lambda: table)
    measured.in_force.cache_clear()
    try:
        result = CliRunner().invoke(cli, ["info"], env={"COLUMNS": "120"})
    finally:
        monkeypatch.undo()
        measured.in_force.cache_clear()
    assert result.exit_code == 0
    assert [line.split(": ")[0] for line in result.stderr.splitlines()] == ["Warning"]
    assert f"{table} is damaged and ignored" in result.stderr
    assert f"tuned    {table}: 0 entries, 1 bytes" in result.stdout


def test_info_refuses_a_head_ratio() -> None:
    result = CliRunner().invoke(cli, ["info", "--q-heads", "7", "--kv-heads", "2"])
    assert result.exit_code == 1
    assert "--q-heads: expected a multiple of --kv-heads (2), got 7" in result.output


def test_version_and_help() -> None:
    assert chunkattn.__version__ in CliRunner().invoke(cli, ["--version"]).output
    text = CliRunner().invoke(cli, ["demo", "--help"]).output
    for option in ("--model", "--chunk", "--prompt-file", "--json"):
        assert option in text


@pytest.mark.parametrize("package", ["click", "rich"])
def test_missing_package_gives_one_sentence(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "argv", ["chunkattn", "info"])
    if package == "click":
        assert main() == 1
    else:
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == 1
    error = capsys.readouterr().err
    assert f"needs the package '{package}', which is not installed: pip install 'chunkattn[demo]'" in error
    assert "Traceback" not in error


def test_importing_the_library_imports_no_optional_package() -> None:
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import chunkattn, chunkattn.scheduler, chunkattn.models, chunkattn.cli.main\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(*new & {'click', 'rich', 'matplotlib', 'gguf', 'tokenizers', 'safetensors', 'jinja2', 'triton'})"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tempfile.gettempdir())
    assert result.stdout.strip() == ""

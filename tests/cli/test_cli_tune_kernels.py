"""`chunkattn tune kernels` from the outside: keys, entries, going on after an interruption, and who uses the table."""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import chunkattn
from chunkattn.backends import load
from chunkattn.bench.case import BenchCase, Heads
from chunkattn.cli import tune_kernels
from chunkattn.cli.commands import cli
from chunkattn.env import Settings
from chunkattn.planning import measured, tuning_table
from chunkattn.planning.tuning_table import TuningEntry, TuningTable
from chunkattn.tuning.kernels import Outcome
from chunkattn.tuning.problem import spec_of
from chunkattn.tuning.search import Refused, Verdict

SMALL = ("--q-heads", "4", "--kv-heads", "2", "--head-dim", "16", "--mix", "4x1+99", "--mix", "1x40+9,2x1+50")
cpu: Any = load("cpu")
if not cpu.supports(spec_of(BenchCase("tune", "", ((1, 1, 0),), Heads(4, 2, 16, 16)), "cpu")):
    pytest.skip("the native core is not built", allow_module_level=True)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["tune", "kernels", *arguments], env={"COLUMNS": "200"})


def test_a_dry_run_lists_and_writes_nothing(tmp_path: Path) -> None:
    table = tmp_path / "t.json"
    result = run("--dry-run", "--table", str(table), *SMALL)
    assert result.exit_code == 0, result.output
    assert "decode-small: to be measured" in result.output
    assert "mixed-small: to be measured" in result.output
    assert f"table {table}" in result.output
    assert not table.exists()


def test_one_process_tunes_and_the_next_uses_it_and_tunes_nothing(tmp_path: Path) -> None:
    table = tmp_path / "t.json"
    environment = {**os.environ, "CHUNKATTN_TUNING": str(table), "PYTHONPATH": str(Path(chunkattn.__file__).parents[1])}

    def process(*arguments: str) -> str:
        command = [sys.executable, "-m", "chunkattn.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tempfile.gettempdir())
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    first = json.loads(process("tune", "kernels", "--json", *SMALL))
    assert first["table"] == str(table)
    assert [row["key"]["mix_class"] for row in first["keys"]] == ["decode-small", "mixed-small"]
    assert all(row["values"] is not None and row["gain"] >= 1 for row in first["keys"])
    content = table.read_bytes()
    second = json.loads(process("tune", "kernels", "--json", *SMALL))
    assert [row["state"] for row in second["keys"]] == ["tuned before"] * 2
    assert [row["values"] for row in second["keys"]] == [row["values"] for row in first["keys"]]
    assert table.read_bytes() == content
    shown = process("info", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "16")
    assert shown.count(", tuned: nothing was faster") + shown.count("; tuned: ") >= 1
    assert str(table) in shown.replace("\n", "")
    assert "2 of cpu on" in shown


def test_a_spread_that_was_not_measured_is_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing seems faster at first sight the second pass, which measures it, does not take place."""

    def tune(job: Any, **options: Any) -> Outcome:
        return Outcome(job, Verdict(0, 1.0, 0.0, "nothing was faster"), TuningEntry(job.settings[0], 1.0, 0.0, 5.0))

    monkeypatch.setattr(tune_kernels, "tune", tune)
    for state in ("nothing was faster", "tuned before"):
        rows = json.loads(run("--table", str(tmp_path / "t.json"), "--json", *SMALL).stdout)["keys"]
        assert [(row["state"], row["spread"]) for row in rows] == [(state, None)] * 2


def planned_outcomes(monkeypatch: pytest.MonkeyPatch, *, stop_after: int) -> list[str]:
    """Replaces measuring by a verdict; records whose turn it was."""
    seen: list[str] = []

    def tune(job: Any, **options: Any) -> Outcome:
        if len(seen) == stop_after:
            raise KeyboardInterrupt
        seen.append(job.key.mix_class)
        return Outcome(job, Verdict(0, 1.0, 0.01, "nothing was faster"), TuningEntry(job.settings[0], 1.0, 0.01, 5.0))

    monkeypatch.setattr(tune_kernels, "tune", tune)
    return seen


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = str(tmp_path / "t.json")
    first = planned_outcomes(monkeypatch, stop_after=1)
    interrupted = run("--table", table, *SMALL)
    assert interrupted.exit_code == 130
    told = f"1 of 2 keys are tuned and saved in {table}; run the command again, it goes on from here.\n"
    assert interrupted.stdout.endswith(f"Interrupted: {told}")
    assert first == ["decode-small"]
    assert len(TuningTable(Path(table))) == 1
    second = planned_outcomes(monkeypatch, stop_after=9)
    result = run("--table", table, *SMALL)
    assert result.exit_code == 0
    assert second == ["mixed-small"]
    assert "2 keys, 1 tuned before" in result.output
    third = planned_outcomes(monkeypatch, stop_after=9)
    assert run("--table", table, "--again", *SMALL).exit_code == 0
    assert third == first + second


def test_an_interruption_keeps_the_json_stream_empty_and_names_the_option_that_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned_outcomes(monkeypatch, stop_after=1)
    result = run("--table", str(tmp_path / "t.json"), "--json", "--again", *SMALL)
    assert (result.exit_code, result.stdout) == (130, "")
    assert "run the command again without --again, it goes on from here" in result.stderr


def test_what_does_not_fit_in_the_time_is_left_for_the_next_run(tmp_path: Path) -> None:
    result = run("--table", str(tmp_path / "t.json"), "--budget-seconds", "0.5", *SMALL)
    assert result.exit_code == 2
    assert "run the command again" in result.output


def test_keys_get_all_the_time_that_is_left_and_those_that_cannot_be_finished_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that take least come first; who would need more than what is left is not begun."""
    real_jobs, begun = tune_kernels.jobs, []

    def slow_decodes(*arguments: Any) -> Any:
        for job in real_jobs(*arguments):
            slow = replace(job, settings=job.settings * 2, round_seconds=1000.0)
            yield slow if job.key.mix_class == "decode-small" else job

    def tune(job: Any, *, deadline: float, **options: Any) -> Outcome:
        begun.append((job.key.mix_class, deadline - time.monotonic()))
        return Outcome(job, Verdict(0, 1.0, 0.01, "nothing was faster"), TuningEntry(job.settings[0], 1.0, 0.01, 5.0))

    monkeypatch.setattr(tune_kernels, "jobs", slow_decodes)
    monkeypatch.setattr(tune_kernels, "tune", tune)
    arguments = ("--budget-seconds", "500", "--mix", "1x64+128", *SMALL)
    result = run("--table", str(tmp_path / "t.json"), *arguments)
    assert result.exit_code == 2
    assert sorted(mix for mix, _ in begun) == ["mixed-small", "prefill-small"]
    assert all(seconds > 400 for _, seconds in begun)
    assert "decode-small: not reached, too little time was left\n" in result.output
    assert "run the command again, it goes on from here" in result.output
    again = run("--table", str(tmp_path / "t.json"), *arguments)
    assert (again.exit_code, len(begun)) == (2, 2)
    assert "run the command again with more --budget-seconds" in again.output
    rows = json.loads(run("--table", str(tmp_path / "t.json"), "--json", *arguments).stdout)["keys"]
    assert [row["state"] for row in rows] == ["tuned before", "tuned before", "not reached"]


@pytest.mark.parametrize("options", [(), ("--json",), ("--dry-run",)])
@pytest.mark.parametrize("place", ["file/t.json", "/proc/t.json"])
def test_a_table_that_cannot_be_written_is_told_before_anything_is_measured(
    place: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    seen = planned_outcomes(monkeypatch, stop_after=0)
    result = run("--table", str(tmp_path / place), *options, *SMALL)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {tmp_path / place}: ")
    assert result.output.count("\n") == 1
    assert seen == []


def test_a_readable_table_in_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "t.json"
    planned_outcomes(monkeypatch, stop_after=1)
    run("--table", str(table), *SMALL)
    assert len(TuningTable(table)) == 1

    def refuse(**options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # mounting one takes a privilege
    seen = planned_outcomes(monkeypatch, stop_after=0)
    result = run("--table", str(table), *SMALL)
    assert (result.exit_code, result.output) == (1, f"Error: {table}: Read-only file system\n")
    assert seen == []


def test_a_table_of_a_later_version_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t.json"
    table.write_text('{"format": "chunkattn-tuning", "schema": 99, "entries": []}')
    seen = planned_outcomes(monkeypatch, stop_after=0)
    result = run("--table", str(table), *SMALL)
    assert result.exit_code == 1
    assert f"--table: expected a file that can be written, got {table}: it has schema 99" in result.output
    assert seen == []


def test_a_disk_that_fills_up_meanwhile_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing uses what is only in this process."""
    seen = planned_outcomes(monkeypatch, stop_after=9)
    monkeypatch.setattr(TuningTable, "save", lambda *arguments: False)
    result = run("--table", str(tmp_path / "t.json"), *SMALL)
    assert result.exit_code == 1
    assert f"Error: {tmp_path / 't.json'} cannot be written any more" in result.output
    assert seen == ["decode-small"]


def test_a_damaged_table_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{")
    result = run("--dry-run", "--table", str(tmp_path / "t.json"), *SMALL)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"Warning: {tmp_path / 't.json'} is damaged and ignored: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("package", "table"), [("filelock", True), ("platformdirs", False)])
def test_a_missing_package_is_told_before_anything_is_measured(
    package: str, table: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(tuning_table, "SETTINGS", Settings())
    seen = planned_outcomes(monkeypatch, stop_after=0)
    result = run(*(("--table", str(tmp_path / "t.json")) if table else ()), *SMALL)
    assert result.exit_code == 1
    assert f"needs the package '{package}', which is not installed: pip install 'chunkattn[tune]'" in result.output
    assert result.output.count("\n") <= 3
    assert seen == []


@pytest.mark.parametrize(
    ("version", "message"),
    [(None, "triton is not installed"), ("3.5.1", "triton >= 3.6 is needed, 3.5.1 is installed")],
)
def test_a_missing_triton_is_told_with_what_installs_it(
    version: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = sys.modules[load("triton").supports.__module__]._triton_missing
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: version)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    missing.cache_clear()
    try:
        result = run("--backend", "triton", "--arch", "90", "--table", str(tmp_path / "t.json"), *SMALL)
    finally:
        missing.cache_clear()
    assert result.exit_code == 1
    assert f"this; triton: {message}: pip install 'triton>=3.6'\n" in result.output


def test_a_default_that_answers_wrong_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tune(job: Any, **options: Any) -> Outcome:
        raise Refused("the default's answer is wrong: row 3")

    monkeypatch.setattr(tune_kernels, "tune", tune)
    result = run("--table", str(tmp_path / "t.json"), *SMALL)
    assert result.exit_code == 1
    assert "Error: the default's answer is wrong: row 3\n" in result.output


def test_the_shape_that_is_tuned_is_named(tmp_path: Path) -> None:
    table = "--table", str(tmp_path / "t.json")
    assert "cpu: 32 query and 8 KV heads of 128, bf16, pages of 16\n" in run("--dry-run", *table).output
    assert "1 key, " in run("--dry-run", "--mix", "2x1+9", *table).output
    several = run("--dry-run", *table, *SMALL, "--head-dim-v", "8", "--kv-dtype", "int8", "--page-size", "4").output
    assert "cpu: 4 query and 2 KV heads of 16/8, bf16 with int8 caches, pages of 4\n" in several


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such-model",), "expected one of llama-3-8b"),
        (("--q-heads", "3", "--kv-heads", "2"), "--q-heads: expected a multiple of --kv-heads (2), got 3"),
        (("--mix", "4"), "--mix: expected COUNTxTOKENS+HISTORY"),
        (("--budget-seconds", "0"), "Invalid value for '--budget-seconds'"),
        (("--budget-seconds", "nan"), "nan is not a finite number"),
        (("--budget-seconds", "inf"), "inf is not a finite number"),
        (("--device", "cuda", "--backend", "cuda"), "no backend with settings can serve this; cuda: "),
        (("--device", "cuda"), "no backend with settings can serve this; cuda: "),
        (("/nonexistent/config.json",), "config.json or its folder, got no file /nonexistent/config.json"),
        (("llama.json",), "config.json or its folder, got no file llama.json"),
        (("llama-3-8b", "--q-heads", "7"), "--q-heads: expected it without MODEL only, got llama-3-8b too"),
        (("llama-3-8b", "--head-dim-v", "8"), "--head-dim-v: expected it without MODEL only"),
        (("--mix", "1x1+100000000"), "--mix: expected batches in half of the memory ("),
        (("--mix", "1000000x1+10"), "--mix: expected at most 4096 requests, got '1000000x1+10'"),
        (("--head-dim", "1000"), "this; cpu: spec.head_dim: expected"),
        (("--dtype", "bf16", "--kv-dtype", "fp32"), "this; cpu: spec.kv_dtype: expected"),
        (("--sms", "7"), "--sms: expected it with --arch only"),
        (("--compile",), "--compile: expected a backend of GPUs, got cpu"),
        (("--arch", "80", "--backend", "cpu"), "no backend with settings can serve this; cpu: tensors are on cuda"),
    ],
)
def test_refusals(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = run("--table", str(tmp_path / "t.json"), *arguments)
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output


def test_info_tells_default_shipped_and_tuned_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # what is a large batch depends on it
    spec = spec_of(BenchCase("tune", "", ((1, 1, 0),), Heads(4, 2, 16, 16)), "cpu")
    shipped, tuned = tmp_path / "shipped.json", tmp_path / "tuned.json"
    better = TuningEntry({**next(iter(cpu.settings_space(spec))), "items_per_worker": 2}, 1.25, 0.01, 86400.0)
    TuningTable(shipped).save({cpu.tuning_key(spec, mix): better for mix in ("decode-small", "mixed-small")})
    same = TuningEntry(next(iter(cpu.settings_space(spec))), 1.0, 0.02, 86400.0)
    unmeasured = TuningEntry(next(iter(cpu.settings_space(spec))), 1.0, 0.0, 86400.0)
    other = cpu.tuning_key(spec, "mixed-small")._replace(library="0.0.1")
    TuningTable(tuned).save(
        {cpu.tuning_key(spec, "mixed-small"): same, cpu.tuning_key(spec, "prefill-large"): unmeasured, other: better}
    )
    monkeypatch.setattr(measured, "SHIPPED", shipped)
    monkeypatch.setattr(measured, "user_table", lambda: tuned)
    measured.in_force.cache_clear()
    try:
        arguments = ["info", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "16"]
        output = CliRunner().invoke(cli, arguments, env={"COLUMNS": "200"}).output
    finally:
        monkeypatch.undo()
        measured.in_force.cache_clear()
    assert "decode-small   items_per_worker 2; shipped: 25.0% faster than the default on 1970-01-02" in output
    assert "mixed-small    default, tuned: nothing was faster on 1970-01-02 (spread 2.0%)" in output
    assert "prefill-large  default, tuned: nothing was faster on 1970-01-02\n" in output
    assert "prefill-small  default: never measured here" in output
    assert f"shipped  {shipped}: 2 entries" in output
    assert f"tuned    {tuned}: 3 entries" in output
    assert "of version 0.0.1: not used" in output

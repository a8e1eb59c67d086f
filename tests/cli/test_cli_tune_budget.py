"""`chunkattn tune budget` from the outside: recommendation, files, infeasible objectives, refusals."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from tiny_model import write_model

from chunkattn.cli.commands import cli
from chunkattn.simulation import CostModel


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    cost = CostModel((1, 2048), (5e-3, 0.2048), 1e-9, 1e-8, 0.0, 0.0, held_out_errors=(0.01, 0.02, 0.3))
    (tmp_path / "cost.json").write_text(cost.to_json())
    return "cost.json"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["tune", "budget", *arguments], env={"COLUMNS": "110"})


def test_one_command_gives_budget_settings_and_picture(profile: str, tmp_path: Path) -> None:
    result = run("--profile", profile, "--slo-itl", "0.08", "--requests", "50", "--output", "out")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "budget.json").read_text())
    budget = found["recommended"]
    assert budget % 64 == 0
    assert f"Token budget {budget}" in result.output
    assert f"--max-num-batched-tokens {budget} " in result.output
    assert f"--chunked-prefill-size {budget} " in result.output
    assert f"--max_num_tokens {budget} " in result.output
    assert "held-out error median 2.0%" in result.output
    assert "±" in result.output
    replayed = next(r for r in found["replay"]["replays"] if r["budget"] == budget)
    assert replayed["itl_p99"] <= 0.08
    assert replayed["met"] is True
    assert (tmp_path / "out" / "budget.png").read_bytes().startswith(b"\x89PNG")
    again = run("--profile", profile, "--slo-itl", "0.08", "--requests", "50", "--output", "out", "--json")
    assert json.loads(again.stdout)["recommended"] == budget


def test_infeasible_objective_exits_2_and_says_what_is_needed(profile: str, tmp_path: Path) -> None:
    result = run("--profile", profile, "--slo-itl", "0.002", "--requests", "50", "--output", "out")
    assert result.exit_code == 2
    for word in ("infeasible", "needed: an ITL objective of", "faster"):
        assert word in result.output
    assert "--max-num-batched-tokens" not in result.output
    assert json.loads((tmp_path / "out" / "budget.json").read_text())["recommended"] is None
    assert (tmp_path / "out" / "budget.png").exists()


def with_errors(profile: str, *errors: float) -> None:
    Path(profile).write_text(replace(CostModel.read(Path(profile)), held_out_errors=errors).to_json())


@pytest.mark.parametrize(
    ("errors", "warned"),
    [
        ((0.0, 0.09, 0.1), []),
        ((0.0, 0.11, 0.5), ["the steps are not predicted within 10%"]),
        ((0.0, 0.01, 0.5), ["one step in ten is not predicted within 20%"]),
    ],
)
def test_warns_of_steps_that_are_not_predicted(profile: str, errors: tuple[float, ...], warned: list[str]) -> None:
    with_errors(profile, *errors)
    result = run("--profile", profile, "--slo-itl", "0.002", "--requests", "20")
    assert re.findall(r"[^:]+not predicted within \d+%", result.output) == [f" {words}" for words in warned]


@pytest.mark.parametrize(
    ("itl", "error", "uncertain"),
    [
        ("0.002", 0.3, False),  # the fastest step takes 13 ms
        ("0.002", 0.6, True),
        ("0.012", 0.05, False),
        ("0.012", 0.3, True),
    ],
)
def test_infeasible_is_uncertain_where_the_model_is(profile: str, itl: str, error: float, uncertain: bool) -> None:
    with_errors(profile, error, error)
    result = run("--profile", profile, "--slo-itl", itl, "--requests", "20")
    assert result.exit_code == 2
    assert "- infeasible: no budget meets" in result.output
    assert (f"infeasible is uncertain: with steps predicted to ± {error:.0%}" in result.output) == uncertain


@pytest.mark.parametrize(("error", "told"), [(0.05, False), (0.6, True)])
def test_says_that_an_error_bar_reaches_beyond_the_objective(profile: str, error: float, told: bool) -> None:
    with_errors(profile, error, error)
    arguments = ("--profile", profile, "--slo-itl", "0.08", "--requests", "50")
    result = run(*arguments)
    assert result.exit_code == 0
    assert ("beyond the ITL objective of 80 ms, which may be missed" in result.output) == told
    assert any("beyond the ITL" in line for line in json.loads(run("--json", *arguments).stdout)["warnings"]) == told


@pytest.mark.parametrize(("fixed", "told"), [(20e-3, True), (0.0, False)])
def test_says_where_a_larger_budget_may_be_better(profile: str, fixed: float, told: bool) -> None:
    cost = CostModel((1, 512), (fixed + 1e-4, fixed + 512e-4), 0.0, 0.0, 0.0, 0.0, held_out_errors=(0.01,))
    Path(profile).write_text(cost.to_json())
    result = run("--profile", profile, "--slo-itl", "1", "--requests", "20", "--decodes", "1")
    assert result.exit_code == 0
    assert ("still rises at 512 tokens, the largest budget measured; a larger one may be" in result.output) == told
    assert ("--longest keeps one" in result.output) == told


def test_no_number_is_in_powers_of_ten(profile: str) -> None:
    with_errors(profile, 0.0, 0.1, 2.2)
    result = run("--profile", profile, "--slo-itl", "0.08", "--requests", "50", "--rate", "1000")
    assert " ms if every step is full" in result.output
    assert not re.search(r"\de[+-]\d", result.output)


def test_a_flood_is_not_confirmed(profile: str) -> None:
    result = run("--profile", profile, "--slo-itl", "0.08", "--slo-ttft", "3", "--requests", "50", "--rate", "100")
    assert result.exit_code == 2
    assert "not confirmed" in result.output or "infeasible" in result.output


def test_measures_a_model_and_keeps_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    arguments = ("--slo-itl", "30", "--decodes", "2", "--tile", "16", "--length-scale", "0.1", "--requests", "20")
    measured = run("--model", ".", "--longest", "64", "--save-profile", "kept.json", "--json", *arguments)
    assert measured.exit_code == 0, measured.output
    first = json.loads(measured.stdout)
    assert first["recommended"] in (16, 32, 48, 64)
    assert first["held_out_error"]["steps"] == 12
    rates = {candidate["budget"]: candidate["rate"] for candidate in first["candidates"]}
    rises = first["recommended"] > 32 and rates[32] < 0.95 * rates[64]  # as measured: a machine may be noisy
    assert any("--longest 128 measures larger steps" in line for line in first["warnings"]) == rises
    assert CostModel.read(tmp_path / "kept.json").facts["dtype"] == "float32"
    again = run("--profile", "kept.json", "--json", *arguments)
    assert json.loads(again.stdout)["candidates"] == first["candidates"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    result = run("--slo-itl", "1", "--model", ".", "--device", "cuda")
    assert result.exit_code == 1
    assert "device: expected one that torch finds on this machine, got 'cuda'" in result.output
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("option", ["--output", "--save-profile"])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("chunkattn.models.load_model", lambda *arguments, **options: pytest.fail("it was loaded"))
    (tmp_path / "file").write_text("no folder")
    result = run("--slo-itl", "1", option, "file/below")
    assert result.exit_code == 1
    assert "Error: " in result.output
    assert "file" in result.output
    assert "Not a directory" in result.output


@pytest.mark.parametrize("name", ["budget.png", "budget.json"])
def test_a_folder_in_a_files_place_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("chunkattn.models.load_model", lambda *arguments, **options: pytest.fail("it was loaded"))
    (tmp_path / "out" / name).mkdir(parents=True)
    result = run("--slo-itl", "1", "--output", "out")
    assert result.exit_code == 1
    assert f"{name}: Is a directory" in result.output


@pytest.mark.parametrize("as_json", [False, True])
def test_files_that_fail_after_all_do_not_take_the_recommendation_along(
    profile: str, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    def full(path: Path, content: bytes | str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("chunkattn.cli.tune_budget.write_atomically", full)
    arguments = ("--profile", profile, "--slo-itl", "0.08", "--requests", "50")
    result = run(*arguments, *(["--json"] if as_json else []))
    assert result.exit_code == 1
    assert "budget.png: No space left on device" in result.output
    assert "--max-num-batched-tokens" in result.stdout
    assert "Picture:" not in result.output
    if as_json:
        assert json.loads(result.stdout)["recommended"] > 0


def test_a_profile_that_cannot_be_kept_does_not_take_the_recommendation_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    (tmp_path / "full").symlink_to("/dev/full")
    arguments = ("--slo-itl", "30", "--decodes", "2", "--tile", "16", "--length-scale", "0.1", "--requests", "20")
    result = run("--model", ".", "--longest", "32", "--save-profile", "full", *arguments)
    assert result.exit_code == 1
    assert "No space left on device" in result.output
    assert "--max-num-batched-tokens" in result.output
    assert Path("chunkattn-tune-budget/budget.png").exists()


def test_options_that_change_nothing_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text("")
    beside = run("trace.csv", "--slo-itl", "1", "--arrivals", "mooncake")
    assert "--arrivals: expected it without TRACE only" in beside.output
    for option in ("--layers", "--tensor-parallel"):
        assert f"{option}: expected it with --profile only" in run("--slo-itl", "1", option, "2").output


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        ((), "no --layers and no --peak-flops and no --peak-bandwidth"),
        (("--layers", "32", "--peak-bandwidth", "1e12"), "no --peak-flops"),
    ],
)
def test_what_a_layer_profile_lacks_is_named_by_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], missing: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layers.csv").write_text("num_tokens,time_stats.mlp.median\n1,1\n")
    result = run("--slo-itl", "1", "--profile", "layers.csv", *arguments)
    assert result.exit_code == 1
    assert result.output.endswith(f"got {missing}\n")
    assert "(--layers, --peak-flops, --peak-bandwidth)" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--slo-itl", "0"), "Invalid value for '--slo-itl'"),
        (("--slo-itl", "1", "--margin", "1"), "Invalid value for '--margin'"),
        (("--slo-itl", "1", "--decodes", "4096"), "largest: expected at least 4160 measured tokens"),
        ((), "Missing option '--slo-itl'"),
        (("--slo-itl", "inf"), "inf is not a finite number"),
        (("--slo-itl", "1", "--slo-ttft", "nan"), "nan is not a finite number"),
        (("--slo-itl", "1", "--margin", "nan"), "nan is not a finite number"),
        (("--slo-itl", "1", "--rate", "inf"), "inf is not a finite number"),
        (("--slo-itl", "1", "--length-scale", "inf"), "inf"),
        (("--slo-itl", "1", "--length-scale", "1e300"), "Invalid value for '--length-scale'"),
        (("--slo-itl", "1", "--peak-flops", "inf"), "inf is not a finite number"),
        (("--slo-itl", "1", "--peak-bandwidth", "nan"), "nan is not a finite number"),
        (("--slo-itl", "1", "--device", "cpu"), "--device: expected it without --profile only"),
    ],
)
def test_refusals(profile: str, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("--profile", profile, "--output", "out", *arguments)
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()

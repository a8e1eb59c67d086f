"""Records survive their file, tables and the page say what is in them, the command line does what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import fakes
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from test_bench_compare import noisy_record

import chunkattn
from chunkattn.bench import page, session, svg, table
from chunkattn.bench.case import Heads
from chunkattn.bench.record import Measured, Record, Sample
from chunkattn.bench.rounds import Effort
from chunkattn.cli.bench import bench

SETTINGS = session.Settings(("chunkattn", "torch-sdpa"), Effort(2, 2, 0.02), max_buffers=1)


@pytest.fixture(scope="module")
def record() -> Record:
    """A real run: a mixed case and four points of a grid, with a wrong provider in it."""
    grid = [
        fakes.SMALL.but(name=f"chunk{chunk}@{history}", requests=((1, chunk, history),), axes=axes)
        for chunk in (16, 32)
        for history in (0, 64)
        for axes in [(("chunk", chunk), ("history", history))]
    ]
    line = [fakes.SMALL.but(name=f"batch{n}", requests=((n, 1, 63),), axes=(("batch", n),)) for n in (1, 2, 4)]
    made = session.run([*grid, *line], SETTINGS)
    wrong = {"zeros": fakes.Fake("zeros <&>", fakes.zeros)}
    made.cells.append(session.run_case(fakes.SMALL, SETTINGS, extra=wrong))
    return made


def test_a_record_survives_its_file(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "r.json")
    again = Record.load(tmp_path / "r.json")
    assert [cell.key for cell in again.cells] == [cell.key for cell in record.cells]
    for one, other in zip(record.cells, again.cells, strict=True):
        assert other.floor_s == pytest.approx(one.floor_s, rel=1e-5)
        for a, b in zip(one.providers, other.providers, strict=True):
            assert (a.provider, a.status, len(a.samples)) == (b.provider, b.status, len(b.samples))
            if a.samples:
                assert b.seconds == pytest.approx(a.seconds, rel=1e-5)
    part = again.parts[0]
    assert part.versions["torch"]
    assert part.machine["cores"] >= 1
    assert part.command.startswith("chunkattn")


@pytest.mark.parametrize(("text", "message"), [("{", "got no JSON"), ("[]", "got list"), ('{"schema": 99}', "got 99")])
def test_another_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        Record.load(tmp_path / "x.json")


def test_merge_replaces_cases_of_the_same_key() -> None:
    old, new = noisy_record(1), noisy_record(2)
    new.cells[0].flops = 77
    old.merge(new)
    assert [cell.flops for cell in old.cells] == [77]


def test_medians_and_spread_use_quiet_windows() -> None:
    times = [(1.0, True), (2.0, True), (3.0, True), (9.0, False)]
    one = Measured("p", "p", "measured", samples=[Sample(t, t / 2, 1, quiet) for t, quiet in times])
    assert one.seconds == 2.0
    assert one.spread == pytest.approx(0.5)
    assert one.best == 0.5


def test_ratio_is_taken_round_by_round() -> None:
    """A machine that is 3 times slower in every other round does not change the ratio."""
    drift = [1.0, 3.0, 1.0, 3.0, 1.0]
    mine = Measured("a", "a", "measured", samples=[Sample(d, d, 1, True) for d in drift])
    peer = Measured("b", "b", "measured", samples=[Sample(2 * d, d, 1, True) for d in drift])
    assert table.ratio(mine, peer) == pytest.approx(2.0)


def test_the_table_shows_everybody(record: Record) -> None:
    console = Console(width=140, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    table.print_record(console, record)
    text = console.export_text()
    assert "chunkattn" in text
    assert "torch SDPA" in text
    assert "zeros <&>: refused" in text
    assert "plain read of the same pages" in text


def test_the_page_is_whole_and_needs_nothing(record: Record) -> None:
    html = page.render(record)
    assert not re.search(r"(src|href)=[\"'](?!#)", html)
    assert "<script" not in html
    assert "zeros &lt;&amp;&gt;" in html
    for heading in ("Summary", "Roofline", "Chunk × history", "Scaling", "Every case"):
        assert heading in html
    charts = re.findall(r"<svg.*?</svg>", html, flags=re.S)
    assert len(charts) >= len(record.cells) + 3
    for chart in charts:
        ElementTree.fromstring(chart)


def test_bars_are_as_long_as_their_values() -> None:
    rows = [svg.Bar("a", 2.0, "#000", ""), svg.Bar("b", 4.0, "#000", "")]
    root = ElementTree.fromstring(svg.bars(rows, mark=1.0, mark_label="floor"))
    widths = [float(r.attrib["width"]) for r in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01)


def test_run_report_and_compare_from_the_command_line(tmp_path: Path) -> None:
    case_file, result, html = tmp_path / "tiny.yaml", tmp_path / "r.json", tmp_path / "r.html"
    case_file.write_text("cases: {tiny: [[1, 8, 8], [2, 1, 9]]}\nheads: smollm2-135m\n")
    runner = CliRunner()
    arguments = ["run", "--cases", str(case_file), "--providers", "chunkattn,torch-sdpa", "--rounds", "1"]
    done = runner.invoke(bench, [*arguments, "--window", "0.02", "--output", str(result)])
    assert done.exit_code == 0, done.output
    assert "torch SDPA" in done.output
    assert runner.invoke(bench, ["report", str(result), "--output", str(html)]).exit_code == 0
    assert "tiny" in html.read_text()
    printed = runner.invoke(bench, ["report", str(result), "--markdown"]).output
    assert re.search(r"\| tiny  1×8@8 \+ 2×1@9.* \| .*% \| .* \| .* ms, .*× \|", printed)
    same = runner.invoke(bench, ["compare", str(result), str(result), "--json"])
    assert same.exit_code == 0
    (change,) = json.loads(same.output)
    assert change["verdict"] in ("same", "unclear")  # one short window tells little
    assert change["change"] == 0.0


def test_compare_exits_with_1_on_a_regression(tmp_path: Path) -> None:
    noisy_record(1).save(tmp_path / "a.json")
    noisy_record(2, 1.3).save(tmp_path / "b.json")
    runner = CliRunner()
    paths = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert runner.invoke(bench, ["compare", *paths]).exit_code == 1
    assert runner.invoke(bench, ["compare", *reversed(paths)]).exit_code == 0


def test_bad_options_get_one_sentence() -> None:
    runner = CliRunner()
    done = runner.invoke(bench, ["run", "--only", "no-such-case"])
    assert done.exit_code == 1
    assert "--only, --dtype and --page-size: expected to match one of cpu/W1" in done.output
    done = runner.invoke(bench, ["run", "--page-size", "x"])
    assert "--only, --dtype and --page-size: expected to match" in done.output
    done = runner.invoke(bench, ["run", "--threads", "100000"])
    assert "100000 is not in the range 1<=x<=4096" in done.output
    done = runner.invoke(bench, ["run", "--providers", "nobody"])
    assert "providers: expected names out of chunkattn" in done.output
    if not torch.cuda.is_available():
        done = runner.invoke(bench, ["run", "--quick", "--device", "cuda"])
        assert done.exit_code == 1
        assert "--device: expected a machine with a CUDA device" in done.output


def test_what_no_backend_can_do_is_refused_before_anything_is_measured(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(session, "run_case", None)
    odd = [fakes.SMALL.but(heads=Heads(4, 2, head_dim=60)), fakes.SMALL.but(heads=Heads(4, 3))]
    with pytest.raises(chunkattn.UnsupportedError, match=r"^fakes/mixed/bf16/nhd16: spec.head_dim: expected .* got 60"):
        session.run(odd, SETTINGS)
    session.run([], SETTINGS)
    grid = "{name: odd, over: {n: [1]}, requests: [[n, 1, 0]], heads: {head_dim: 60}}"
    (tmp_path / "odd.yaml").write_text(f"grids: [{grid}]")
    options = ["--cases", str(tmp_path / "odd.yaml"), "--output", str(tmp_path / "out.json")]
    done = CliRunner().invoke(bench, ["run", *options])
    assert done.exit_code == 1
    assert done.output.startswith(
        "Error: odd/odd/bf16/nhd16: spec.head_dim: expected a multiple of 8 up to 256, got 60"
    )
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    "text", ["[1", "\udcff", "{}", "[]", '{"schema": 1}', '{"schema": 1, "parts": [], "cells": [3], "micro": []}']
)
def test_what_is_no_result_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text, errors="surrogateescape")
    monkeypatch.setattr(session, "run", None)  # a run would be in vain
    monkeypatch.setattr(session, "run_micro", None)
    commands = (["compare", str(file), str(file)], ["report", str(file), "--output", str(tmp_path / "b.html")])
    appending = ["--append", "--output", str(file)]
    for command in (*commands, ["run", "--quick", *appending], ["micro", *appending]):
        done = CliRunner().invoke(bench, command)
        assert done.exit_code == 1
        assert done.output.startswith(f"Error: {file}: expected a ")
        assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("command", [["run", "--quick"], ["micro"]])
def test_a_result_that_could_not_be_written_is_refused_first(command: list[str], monkeypatch) -> None:
    monkeypatch.setattr(session, "run", None)
    monkeypatch.setattr(session, "run_micro", None)
    done = CliRunner().invoke(bench, [*command, "--output", "/proc/nowhere/a.json"])
    assert done.exit_code == 1
    assert done.output == "Error: /proc/nowhere/a.json: No such file or directory\n"


def test_list_names_suites_and_missing_peers() -> None:
    done = CliRunner().invoke(bench, ["list"])
    assert done.exit_code == 0
    assert "grid" in done.output
    assert "vllm-cpu" in done.output


def test_a_machine_too_busy_for_the_time_gets_one_round_and_enough_peers(monkeypatch) -> None:
    slow = {f"peer{n}": fakes.Fake(f"peer{n}", fakes.honest) for n in range(5)}
    monkeypatch.setattr(session, "_ENOUGH_PEERS", 2)
    settings = session.Settings(("chunkattn",), Effort(5, 5, 0.01), max_buffers=1)
    cell = session.run_case(fakes.SMALL, settings, extra=slow, limit_s=0.0)
    assert [one.status for one in cell.providers] == ["measured"] * 3 + ["skipped"] * 3
    assert {len(one.samples) for one in cell.measured()} == {1}
    whole = session.run_case(fakes.SMALL, settings, extra=slow)
    assert {one.status for one in whole.providers} == {"measured"}
    assert {len(one.samples) for one in whole.measured()} == {5}

"""`chunkattn serve-sim` from the outside: files, table, JSON, refusals."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from tiny_model import write_model

from chunkattn import PagedKV
from chunkattn.cli.commands import cli
from chunkattn.cli.serve_view import ServeView
from chunkattn.scheduler import Request, Scheduler, SchedulerConfig
from chunkattn.serving import Engine
from chunkattn.simulation import Calibration, CostModel, Experiment, Outcome

FILES = {"report.html", "results.json", "steps.png", "latency.png", "tradeoff.png", "memory.png"}
VLLM_KEYS = {
    *("duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput"),
    *("output_throughput", "total_token_throughput", "num_prompts", "request_rate"),
    *(f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl", "e2el")),
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_model(directory)
    return directory


@pytest.fixture
def arguments(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    rows = [f"2023-11-16 18:15:{i:02d}.0000000,{20 + 7 * i},{3 + i % 4}" for i in range(12)]
    (tmp_path / "trace.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return ["serve-sim", "trace.csv", "--model", str(model_dir), "--max-num-seqs", "4", "--pages", "100"]


def run(arguments: list[str]) -> Result:
    return CliRunner().invoke(cli, arguments, env={"COLUMNS": "110"})


@pytest.mark.parametrize("executor", ["simulated", "model"])
def test_one_command_compares_three_settings(arguments: list[str], tmp_path: Path, executor: str) -> None:
    result = run([*arguments, "--executor", executor, "--slo-ttft", "10", "--output", "out"])
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*FILES, "calibration.json"}
    for word in ("whole", "sarathi", "disaggregated", "TTFT p99", "ITL max", "against whole", "report.html"):
        assert word in result.output
    error = re.search(r"held-out error of the cost model: mean [\d.]+%", " ".join(result.output.split()))
    assert (error is not None) == (executor == "simulated")
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    sources = re.findall(r"(?:src|href)='([^']*)", page)
    assert len(sources) == 4
    assert all(source.startswith("data:") for source in sources), "the page needs something else"
    assert "trace.csv under 3 settings" in page
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [r["setting"] for r in results["runs"]] == ["whole", "sarathi", "disaggregated"]
    for one in results["runs"]:
        assert set(one) >= VLLM_KEYS
        assert one["completed"] == one["num_prompts"] == 12
        assert one["executor"] == executor
        assert ("held-out" in one["note"]) == (executor == "simulated")


def test_json_sweep_and_saved_calibration(arguments: list[str], tmp_path: Path) -> None:
    options = ["--setting", "sarathi:64", "--setting", "vllm:policy=sjf", "--rate", "1", "--rate", "5", "--json"]
    calibration = ["--calibration", "cost.json"]
    first = run([*arguments, *options, *calibration])
    assert first.exit_code == 0, first.output
    saved = (tmp_path / "cost.json").read_text()
    again = run([*arguments, *options, *calibration])
    assert (tmp_path / "cost.json").read_text() == saved
    results = [json.loads(result.stdout)["runs"] for result in (first, again)]
    keys = ("setting", "request_rate", "p99_itl_ms", "duration")
    shown = [[[one[key] for key in keys] for one in runs] for runs in results]
    assert shown[0] == shown[1]  # a simulation is repeatable
    assert [(one[0], one[1]) for one in shown[0]] == [
        ("sarathi:64", 1.0),
        ("vllm:policy=sjf", 1.0),
        ("sarathi:64", 5.0),
        ("vllm:policy=sjf", 5.0),
    ]
    other = run([*arguments, *options, *calibration, "--dtype", "bfloat16"])
    assert other.exit_code == 1
    assert "calibration: expected a cost model of dtype bfloat16 in cost.json, got float32" in other.output


@pytest.mark.filterwarnings("error")
def test_answers_of_one_token_have_a_report(arguments: list[str], tmp_path: Path) -> None:
    lines = (tmp_path / "trace.csv").read_text().splitlines()
    (tmp_path / "trace.csv").write_text("\n".join([lines[0], *(line.rsplit(",", 1)[0] + ",1" for line in lines[1:])]))
    result = run([*arguments, "--output", "out"])
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*FILES, "calibration.json"}
    runs = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert [one["p99_itl_ms"] for one in runs] == [None] * 3
    assert all(one["p99_ttft_ms"] > 0 for one in runs)


def test_capacity_is_found_and_needs_an_slo(arguments: list[str], tmp_path: Path) -> None:
    options = ["--setting", "sarathi:64", "--find-capacity", "--calibration", "cost.json"]
    result = run([*arguments, *options, "--slo-ttft", "0.5", "--output", "out"])
    assert result.exit_code == 0, result.output
    assert "capacity, req/s" in result.output
    (one,) = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert one["slo_capacity"] > 0
    refused = run([*arguments, *options])
    assert refused.exit_code == 1
    assert "--find-capacity: expected a simulated executor and at least one --slo option" in refused.output


@pytest.mark.parametrize(("width", "height"), [(100, 30), (50, 12)])
def test_live_view_fits_the_terminal(width: int, height: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    scheduler = Scheduler(SchedulerConfig(16, 4, 4, 50))
    engine = Engine(scheduler, lambda batch: {c.request.request_id: 0 for c in batch.chunks if c.samples})
    view = ServeView(console)
    view.begin("whole @ 1 requests/s", 3, "requests")
    for i in range(3):
        engine.add_request(Request(str(i), [1] * 30, 4))
    while scheduler.has_work:
        view._drawn = 0.0
        view.on_step(engine.step(), scheduler)
        with console.capture() as capture:
            console.print(view._render())
        lines = capture.get().splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert "running" in capture.get()
        assert "/50 pages" in capture.get()
    assert view._finished == 3


def test_synthetic_arrivals_need_no_trace(arguments: list[str]) -> None:
    options = ["--arrivals", "mooncake", "--requests", "20", "--length-scale", "0.02", "--setting", "vllm"]
    result = run(["serve-sim", *arguments[2:], *options])
    assert result.exit_code == 0, result.output
    assert "vllm" in result.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--setting", "quick"], "setting: expected one of whole"),
        (["--model", "/nowhere"], "model: expected 'smollm2'"),
        (["--length-scale", "100"], "trace: expected a request of at most 1024 tokens"),
        (["--device", "foo"], "device: expected one that torch finds on this machine, got 'foo'"),
        (["--device", "meta"], "device: expected one whose tensors hold numbers, got 'meta'"),
        (["--backend", "foo"], "backend: expected one of cpu, cuda, reference, triton, got 'foo'"),
        (["--backend", "cuda"], "backend: expected one that can serve this problem, got 'cuda'; cuda: "),
        (
            ["--length-scale", "0.01", "--requests", "1"],
            "longest_context: expected requests of enough tokens for 8 different steps, got",
        ),
        (["--page-size", str(2**31)], "--page-size: expected at most 2147483647, got 2147483648"),
        (["--pages", "1"], "Error: --pages: expected room for at least one request in 1 pages of 16"),
    ],
)
def test_refuses_in_one_sentence(arguments: list[str], tmp_path: Path, change: list[str], message: str) -> None:
    result = run([*arguments, *change, "--output", "out"])
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
    assert "measuring" not in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--pages", "--page-size"])
def test_a_cache_that_memory_does_not_hold_is_the_options_fault(
    arguments: list[str], option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines differ in what they let a process reserve: this one lets it have a million tokens."""
    allocate = PagedKV.allocate

    def allocate_some(num_pages: int, page_size: int, *rest: int, **options: object) -> PagedKV:
        if num_pages * page_size > 1 << 20:
            raise MemoryError("num_pages: expected pools that fit in memory, got 8 bytes")
        return allocate(num_pages, page_size, *rest, **options)

    monkeypatch.setattr(PagedKV, "allocate", allocate_some)
    result = run([*arguments, option, str(1 << 20), "--executor", "model", "--rate", "5"])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == f"Error: {option}: expected pools that fit in memory, got 8 bytes"


@pytest.mark.parametrize("option", ["--output", "--calibration"])
def test_what_could_not_be_written_is_refused_first(
    arguments: list[str], option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chunkattn.cli.serve_sim.load_model", None)
    result = run([*arguments, option, "/proc/nowhere"])
    assert result.exit_code == 1
    assert re.fullmatch(r"Error: /proc/nowhere\S*: No such file or directory\n", result.output)


def test_malformed_line_is_named_and_nothing_is_written(arguments: list[str], tmp_path: Path) -> None:
    with (tmp_path / "trace.csv").open("a") as file:
        file.write("\n2023-11-16 18:16:00.0000000,forty,1\n")
    result = run([*arguments, "--output", "out"])
    assert result.exit_code == 1
    assert "trace.csv:14, got 'forty'" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--slo-ttft", "--slo-itl", "--peak-flops", "--peak-bandwidth", "--link-bandwidth"])
def test_refuses_what_is_not_positive_before_it_measures(arguments: list[str], option: str) -> None:
    result = run([*arguments, option, "0"])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.output


def test_a_measured_cost_model_is_kept_at_once_and_taken_again(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    measure = Calibration.run

    def counted(self: Calibration, progress: Callable[[int, int], None]) -> CostModel:
        measured.append(self)
        return measure(self, progress)

    def interrupted(*arguments: object) -> Outcome:
        assert (tmp_path / "out" / "calibration.json").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(Calibration, "run", counted)
    arguments = [*arguments, "--setting", "sarathi:64", "--output", "out"]
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "run", interrupted)
        result = run(arguments)
    assert result.exit_code == 130
    assert result.output.endswith("Interrupted: there is no report; the cost model is in out/calibration.json.\n")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["calibration.json"]
    result = run(arguments)
    assert result.exit_code == 0, result.output
    assert "Cost model: out/calibration.json, measured 20" in result.output
    assert len(measured) == 1
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*FILES, "calibration.json"}
    # Another dtype, more decodes, a damaged file: measured again.
    for change in (["--dtype", "bfloat16"], ["--max-num-seqs", "8", "--dtype", "bfloat16"], []):
        if not change:
            (tmp_path / "out" / "calibration.json").write_text("{}")
        before = len(measured)
        result = run([*arguments, *change])
        assert result.exit_code == 0, result.output
        assert len(measured) == before + 1
        assert "Cost model: measured and kept in out/calibration.json" in result.output


def test_an_interrupted_measurement_leaves_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> CostModel:
        raise KeyboardInterrupt

    monkeypatch.setattr(Calibration, "run", interrupted)
    result = run([*arguments, "--output", "out"])
    assert result.exit_code == 130
    assert result.output.endswith("Interrupted: there is no report; nothing was written.\n")
    assert not (tmp_path / "out").exists()


def test_a_real_model_at_a_given_rate_is_not_measured_first(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Calibration, "run", None)
    options = ["--executor", "model", "--rate", "50", "--requests", "3", "--setting", "vllm", "--output", "out"]
    result = run([*arguments, *options])
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


def test_a_long_run_says_where_it_is_without_a_terminal(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkattn.cli.serve_view._REPORT_S", 0.0)
    result = run([*arguments, "--setting", "sarathi:64"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    number = next(int(line.split()[1]) for line in lines if re.match(r"measuring \d+ steps of the model \.\.\.$", line))
    assert number > 12
    for total, unit in ((number, "steps"), (12, "requests")):
        done = [int(m[1]) for line in lines if (m := re.match(rf"  (\d+) of {total} {unit} after \d+ s$", line))]
        assert done == sorted(done)
        assert done[-1] == total

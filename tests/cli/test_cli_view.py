"""What a terminal shows."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from tiny_model import document, write_model

from chunkattn.cli.live_view import LiveView
from chunkattn.cli.results import RunResult, results_table
from chunkattn.cli.scenario import CHATS, DOCUMENT, ScenarioRun, build_scenario
from chunkattn.cli.timeline import DECODE, PREFILL, WAITING, timeline_text
from chunkattn.models import Model, load_model
from chunkattn.scheduler import ScheduledBatch
from chunkattn.serving import ModelExecutor


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory: Path = tmp_path_factory.mktemp("tiny")
    write_model(directory)
    return load_model(str(directory))


def start(model: Model, budget: int | None, clock: Callable[[], float] = time.perf_counter) -> ScenarioRun:
    return ScenarioRun(model, build_scenario(model.tokenizer, document(200), 16, 1024), budget, clock)


@pytest.fixture
def token_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A clock that stands still except while a step runs, which takes a second for each token."""
    now = 0.0
    execute = ModelExecutor.__call__

    def timed(self: ModelExecutor, batch: ScheduledBatch) -> dict[str, int | list[int]]:
        nonlocal now
        now += batch.num_tokens
        return execute(self, batch)

    monkeypatch.setattr(ModelExecutor, "__call__", timed)
    return lambda: now


@pytest.mark.parametrize(("width", "height"), [(100, 40), (60, 24), (40, 12)])
def test_live_view_shows_every_state_and_fits(model: Model, width: int, height: int) -> None:
    run = start(model, 24)
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    view = LiveView(console, "Chunked", run, model.tokenizer)
    seen = ""
    for step in run.run():
        view.on_step(step)
        with console.capture() as capture:
            console.print(view._render())
        lines = capture.get().splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        seen += capture.get()
    assert "not here yet" in seen
    assert f"/{len(run.requests[DOCUMENT].prompt_token_ids)}" in seen  # the document read so far
    assert "16 tokens" in seen
    assert "word" in seen


def test_live_view_on_a_terminal_redraws_in_place(model: Model) -> None:
    run = start(model, None)
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, height=30)
    with LiveView(console, "Whole", run, model.tokenizer) as view:
        for step in run.run():
            view.on_step(step)
    assert "\x1b[" in output.getvalue()
    assert "16 tokens" in output.getvalue()


def test_no_color_leaves_no_colours(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    run = start(model, 24)
    for _ in run.run():
        pass
    output = io.StringIO()
    Console(file=output, force_terminal=True, width=80).print(timeline_text([("Chunked", run)], 80))
    assert PREFILL in output.getvalue()
    assert not any(f"\x1b[{code}m" in output.getvalue() for code in range(30, 38))


def test_timeline_tells_prompt_token_and_wait_apart(model: Model, token_clock: Callable[[], float]) -> None:
    runs = [(str(budget), start(model, budget, token_clock)) for budget in (None, 24)]
    for _, run in runs:
        for _ in run.run():
            pass
    lines = timeline_text(runs, 90).plain.splitlines()
    assert max(map(len, lines)) <= 90
    rows = [line for line in lines if line.split(" ")[0] in (*CHATS, DOCUMENT)]
    assert len(rows) == 10
    assert all(PREFILL in row and DECODE in row for row in rows)
    # The chats wait while the whole prompt runs; the document's row has no output before its prompt has run.
    assert WAITING in rows[0]
    for row in (rows[4], rows[9]):
        cells = row[10:].strip()
        assert cells.startswith(PREFILL)
        assert DECODE not in cells[: cells.rindex(PREFILL)]


def test_table_says_how_many_times_better() -> None:
    whole, chunked = RunResult(8.0, 0.2, 8.0, 80, 100_000_000), RunResult(10.0, 0.2, 0.5, 93, 10_000_000)
    console = Console(file=io.StringIO(), width=100)
    console.print(results_table(whole, chunked, 256))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("1.25x slower", "16x shorter", "10x smaller", "the same", "500 ms", "8.00 s", "chunks of 256"):
        assert part in text

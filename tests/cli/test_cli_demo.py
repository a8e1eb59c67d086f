"""`chunkattn demo` from the outside: JSON, text, pictures, refusals."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from tiny_model import document, write_model

from chunkattn.cli.commands import cli
from chunkattn.cli.scenario import (
    CHATS,
    DOCUMENT,
    PAGE_SIZE,
    TOKENS_BEFORE_DOCUMENT,
    ScenarioRun,
    build_scenario,
    built_in_document,
)
from chunkattn.models import load_model
from chunkattn.models.activation_memory import peak_activation_bytes
from chunkattn.serving import StepMetadata, StepRecord

WORDS_IN_DOCUMENT = 300


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_model(directory)
    return directory


@pytest.fixture
def arguments(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "document.txt"
    text.write_text(document(WORDS_IN_DOCUMENT))
    return ["demo", "--model", str(model_dir), "--prompt-file", str(text), "--chunk", "32", "--max-tokens", "24"]


def run(arguments: list[str], **environment: str) -> Result:
    return CliRunner().invoke(cli, arguments, env={"COLUMNS": "100", **environment})


def test_json_is_one_object_with_both_runs(arguments: list[str], tmp_path: Path) -> None:
    result = run([*arguments, "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert set(answer) == {"whole", "chunked", "tokens_equal"}
    assert answer["tokens_equal"] is True
    figures = {"ttft_s", "tpot_s", "longest_stall_s", "steps", "peak_activation_bytes"}
    whole, chunked = answer["whole"], answer["chunked"]
    assert set(whole) == set(chunked) == figures
    assert all(value > 0 for mode in (whole, chunked) for value in mode.values())
    assert whole["longest_stall_s"] >= whole["tpot_s"]
    # Both runs hold the same rows of logits; the prompt's rows go from 300 to 32.
    assert chunked["peak_activation_bytes"] < whole["peak_activation_bytes"] / 4
    assert not list(tmp_path.glob("*.png"))


def test_text_shows_answers_table_and_timeline(arguments: list[str], tmp_path: Path) -> None:
    result = run(arguments)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output  # not a terminal: no control sequences
    for user in (*CHATS, DOCUMENT):
        assert len(re.findall(rf"^{user}\b", result.output, re.MULTILINE)) == 4  # two answers, two timelines
    assert "word" in result.output
    for row in ("TTFT of the document", "TPOT of the chats", "longest stall", "peak activations", "steps"):
        assert row in result.output
    assert "identical in both runs" in " ".join(result.output.split())
    assert (tmp_path / "chunkattn-demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("columns", ["40", "60", "160"])
def test_text_fits_the_width(arguments: list[str], columns: str) -> None:
    result = run([*arguments, "--timeline", "t.png"], COLUMNS=columns)
    assert result.exit_code == 0, result.output
    assert max(len(line.rstrip()) for line in result.output.splitlines()) <= int(columns)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--chunk", "4"], "token_budget: expected at least max_num_seqs (5)"),
        (
            ["--model", "/nowhere"],
            "model: expected 'smollm2', a Hugging Face directory or a .gguf file, got '/nowhere'",
        ),
        (["--max-tokens", "900"], "--prompt-file: expected at most 125 tokens"),
        (["--backend", "cuda"], "cuda"),
        (["--device", "toaster"], "device: expected one that torch finds on this machine, got 'toaster'"),
    ],
)
def test_refuses_in_one_sentence(arguments: list[str], change: list[str], message: str) -> None:
    result = run([*arguments, *change])
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("path", "message"),
    [("/proc/nowhere/t.png", "/proc/nowhere/t.png: No such file"), ("t.foo", "--timeline: expected a suffix out of ")],
)
def test_a_picture_that_could_not_be_written_is_refused_first(
    arguments: list[str], path: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chunkattn.cli.demo.load_model", None)
    result = run([*arguments, "--timeline", path])
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {message}")


@pytest.mark.parametrize(("path", "start"), [("t.svg", b"<?xml"), ("deep/t", b"\x89PNG"), ("t.PDF", b"%PDF")])
def test_the_suffix_chooses_the_format(arguments: list[str], tmp_path: Path, path: str, start: bytes) -> None:
    assert run([*arguments, "--timeline", path, "--json"]).exit_code == 0
    assert (tmp_path / path).read_bytes().startswith(start)


def test_empty_and_binary_prompt_files_are_refused(arguments: list[str], tmp_path: Path) -> None:
    for content, message in ((b" \n", "expected some text, got none"), (b"\xff\xfe\x00", "expected UTF-8 text")):
        (tmp_path / "document.txt").write_bytes(content)
        result = run(arguments)
        assert result.exit_code == 1
        assert message in result.output


def test_different_tokens_are_reported_and_fail(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    original = ScenarioRun.run

    def tampered(self: ScenarioRun):  # type: ignore[no-untyped-def]
        yield from original(self)
        if self.token_budget is not None:
            self.requests["ben"].output_token_ids[3] += 1

    monkeypatch.setattr(ScenarioRun, "run", tampered)
    result = run([*arguments, "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["tokens_equal"] is False


def test_document_arrives_while_everybody_is_being_answered(model_dir: Path) -> None:
    model = load_model(str(model_dir))
    scenario = build_scenario(model.tokenizer, document(WORDS_IN_DOCUMENT), 24, 1024)
    whole, chunked = (ScenarioRun(model, scenario, budget) for budget in (None, 32))
    for demo_run in (whole, chunked):
        for _ in demo_run.run():
            pass
        first = next(s for s in demo_run.steps if any(c.request.request_id == DOCUMENT for c in s.batch.chunks))
        users = {chunk.request.request_id: chunk for chunk in first.batch.chunks}
        assert set(users) == {*CHATS, DOCUMENT}
        assert all(users[name].is_decode for name in CHATS)
        assert min(len(r.output_token_ids) for r in demo_run.requests.values()) >= TOKENS_BEFORE_DOCUMENT
    sizes = [
        [c.num_tokens for s in r.steps for c in s.batch.chunks if c.request.request_id == DOCUMENT and not c.is_decode]
        for r in (whole, chunked)
    ]
    assert len(sizes[0]) == 1
    assert len(sizes[1]) > 10
    assert sum(sizes[0]) == sum(sizes[1])
    assert all(step.batch.num_tokens <= 32 for step in chunked.steps)
    # A token came to every chat user in every step of the chunked run until the last one.
    for name in CHATS:
        times = chunked.times()[name].token_times
        ends = [step.end for step in chunked.steps if times[0] <= step.end <= times[-1]]
        assert list(pairwise(times)) == list(pairwise(ends))


def test_measuring_memory_changes_nothing_else(model_dir: Path) -> None:
    model = load_model(str(model_dir))
    demo_run = ScenarioRun(model, build_scenario(model.tokenizer, document(WORDS_IN_DOCUMENT), 24, 1024), 32)
    for _ in demo_run.run():
        pass
    before = demo_run.least_margin, len(demo_run.steps), demo_run.times()
    peak = demo_run.peak_activation_bytes()

    def peak_of(step: StepRecord) -> int:
        metadata = StepMetadata.of(step.batch, PAGE_SIZE)
        return peak_activation_bytes(lambda: demo_run._executor.forward(metadata), torch.device("cpu"))

    inputs = 8 * 3 * 32 * 2  # the metadata's own tensors, at most
    assert 0 <= peak - max(peak_of(step) for step in demo_run.steps) <= inputs
    assert (demo_run.least_margin, len(demo_run.steps), demo_run.times()) == before


def test_built_in_document_is_long() -> None:
    # English has at least one token a word in every subword vocabulary.
    assert len(built_in_document().split()) >= 3000

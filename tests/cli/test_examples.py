"""The examples run as they stand."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SECONDS = 300  # of two processes that wait for each other: none is long, unless the machine stands still


def test_mixed_step_runs() -> None:
    result = run_example("mixed_step.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "[300, 76, 129] new tokens over [300, 76, 129] keys -> out [505, 32, 128]",
        "[200, 1, 1] new tokens over [500, 77, 130] keys -> out [202, 32, 128]",
    ]


def test_own_engine_gives_the_same_tokens_for_any_budget(tmp_path: Path) -> None:
    source = (ROOT / "examples" / "own_engine.py").read_text()
    assert "budget, q_heads" in source
    assert " = 16, 32, 8," in source
    answers = set()
    for budget in (1, 7, 32, 1000):
        script = tmp_path / f"engine_{budget}.py"
        script.write_text(source.replace(" = 16, 32, 8,", f" = 16, {budget}, 8,"))
        result = run_example(script)
        assert result.returncode == 0, result.stderr
        *steps, last = result.stdout.splitlines()
        counts = [eval(line.partition(": ")[2]) for line in steps]
        assert all(0 < sum(step) <= budget for step in counts)
        assert sum(map(sum, counts)) == 3 + 5 + 70 + 1  # every token but the last of each answer, once
        answers.add(last)
    assert len(answers) == 1
    assert answers.pop().endswith("64 of 64 pages free")


def test_context_parallel_gives_what_one_rank_gives(tmp_path: Path) -> None:
    arguments = ["--ranks", "3", "--tokens", "100", "--chunk", "17"]
    result = run_example("context_parallel.py", *arguments)
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first == "100 tokens in 6 chunks of 17; keys on each of 3 ranks: [34, 34, 32]"
    assert second.startswith("largest row error against one rank: ")
    # Its comparison is one that can fail: here the owner's queries see keys after them.
    source = (ROOT / "examples" / "context_parallel.py").read_text()
    assert source.count("causal=rank == owner") == 1
    script = tmp_path / "wrong.py"
    script.write_text(source.replace("causal=rank == owner", "causal=False"))
    result = run_example(script, "--ranks", "2", "--tokens", "40", "--chunk", "20")
    assert result.returncode != 0
    assert "lse: " in result.stderr


def test_context_parallel_joins_the_ranks_of_a_launcher() -> None:
    world = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    result = run_example("context_parallel.py", "--ranks", "7", "--tokens", "30", "--chunk", "30", **world)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("30 tokens in 1 chunks of 30; keys on each of 1 ranks: [30]\n")


def run_example(
    script: str | Path, *arguments: str, seconds: float = 100, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


@pytest.mark.parametrize(
    ("gpus", "local_rank", "local_size", "gloo", "expected"),
    [
        (0, 1, 2, False, "cpu cpu"),
        (1, 1, 2, False, "cuda:0 cpu"),  # NCCL takes no two processes on one GPU
        (2, 1, 2, False, "cuda:1 cuda:1"),
        (2, 1, 2, True, "cuda:1 cpu"),
        (1, 0, 1, False, "cuda:0 cuda:0"),  # two machines
    ],
)
def test_disaggregated_sends_from_gpu_to_gpu_where_each_process_has_one(
    monkeypatch: pytest.MonkeyPatch, gpus: int, local_rank: int, local_size: int, gloo: bool, expected: str
) -> None:
    place = runpy.run_path(str(ROOT / "examples" / "disaggregated.py"))["place"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert " ".join(map(str, place(local_rank, local_size, gloo))) == expected


@pytest.mark.parametrize("length", [1, 9])  # of one token there is nothing left to decode
def test_disaggregated_gives_the_tokens_of_a_single_process(length: int) -> None:
    result = run_example("disaggregated.py", "--tiny", "--requests", "30", "--tokens", str(length), seconds=SECONDS)
    assert result.returncode == 0, result.stderr
    answers = _answers(result.stdout)
    assert sorted(answers) == list(range(30))
    assert all(len(tokens) == length for tokens in answers.values())
    assert result.stdout.splitlines()[-1] == "30 requests: the same tokens as in a single process"


def test_disaggregated_notices_pages_that_do_not_arrive(tmp_path: Path) -> None:
    source = (ROOT / "examples" / "disaggregated.py").read_text()
    assert source.count("chunkattn.scatter_pages(values, ") == 1
    script = tmp_path / "wrong.py"
    script.write_text(source.replace("chunkattn.scatter_pages(values, ", "chunkattn.scatter_pages(keys, "))
    result = run_example(script, "--tiny", "--requests", "5", "--tokens", "9", seconds=SECONDS)
    assert result.returncode == 1
    assert "decode: expected the tokens of a single process, got others for requests " in result.stderr


@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_disaggregated_keeps_finished_answers_when_a_process_is_killed(victim: str) -> None:
    survivor = {"prefill": "decode", "decode": "prefill"}[victim]
    many = 3000  # more than can be over when the first answer is
    command = [sys.executable, str(ROOT / "examples" / "disaggregated.py"), "--tiny", "--requests", str(many)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process: list[str] = []
    with (
        tempfile.TemporaryFile("w+") as stderr,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
        ) as example,
    ):
        assert example.stdout is not None
        watchdog = threading.Timer(SECONDS, os.killpg, (example.pid, signal.SIGKILL))
        watchdog.start()
        lines = []
        for line in example.stdout:  # to its end: Popen.communicate does not know what this loop has read ahead
            lines.append(line)
            if line.startswith("request ") and not process:
                process = [line.split()[-1] for line in lines if line.startswith(f"{victim}: process ")]
                os.kill(int(process[0]), signal.SIGKILL)
        example.wait()
        watchdog.cancel()
        stderr.seek(0)
        errors = stderr.read()
    assert process, errors
    assert example.returncode == 1
    answers = _answers("".join(lines))
    assert 0 < len(answers) < many
    assert all(len(tokens) == 24 for tokens in answers.values())
    kept = {
        "prefill": f"{len(answers)} of {many} requests are finished",
        "decode": "the answers that it had finished are printed",
    }[victim]
    assert errors == f"{survivor}: the {victim} process is gone; {kept}\n"


def _answers(output: str) -> dict[int, list[int]]:
    lines = [line.removeprefix("request ") for line in output.splitlines() if line.startswith("request ")]
    return {int(number): json.loads(tokens) for number, _, tokens in (line.partition(": ") for line in lines)}

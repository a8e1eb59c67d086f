"""The examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_mixed_step_runs() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "mixed_step.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
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
        result = subprocess.run(
            [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
        )
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


def run_example(script: str | Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )

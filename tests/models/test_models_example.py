"""The example that generates text runs with the real model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chunkattn.models.smollm2 import find_smollm2

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_generate_example():
    try:
        find_smollm2()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "generate.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "The capital of France is" in run.stdout
    assert "steps of at most 16 tokens" in run.stdout

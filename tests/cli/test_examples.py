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

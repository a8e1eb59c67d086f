"""The Triton backend in the emulator, as the `backend` of the operators' own tests."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import chunkattn

from . import native, triton_driver
from .launch import Options
from .session import Session, emulated

RUNS = [(80, 0), (90, 0)]
SCHEDULED_RUNS = [(arch, seed) for arch in (80, 90) for seed in (0, 1, 2)]


def skip_unless_available() -> None:
    """For the head of a test module; afterwards those of tests/ops can be imported."""
    if native.unavailable_reason() is not None:
        pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
    if not triton_driver.available():
        pytest.skip("triton is not installed", allow_module_level=True)
    sys.path.append(str(Path(__file__).parents[1] / "ops"))


def run_id(run: tuple[int, int]) -> str:
    """Of one (architecture, seed) in a test's name."""
    return f"sm_{run[0]}-seed{run[1]}"


def open_session(run: tuple[int, int], monkeypatch: pytest.MonkeyPatch, **options: object) -> Iterator[Session]:
    """A session of one (architecture, seed), in which index tensors and plans are checked as in debug mode: many tests
    of the operators want an error."""
    debugging = dataclasses.replace(chunkattn.env.SETTINGS, debug=True)
    for module in ("ops", "backends.triton.backend", "backends.triton.pages"):
        monkeypatch.setattr(f"chunkattn.{module}.SETTINGS", debugging)
    arch, seed = run
    with emulated(arch, Options.for_seed(seed, **options)) as session:
        yield session

"""What tests of the CUDA backend in the emulator share: whether it can run, and the schedules that it runs under."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator

import pytest

import chunkattn
from chunkattn.build import builder, store, variants

from . import cuda_runtime, native
from .launch import Options
from .session import Session, emulated

# Both architectures under three schedules; the default tier runs the first one.
RUNS = [
    pytest.param((arch, seed), id=f"sm_{arch}-seed{seed}", marks=[pytest.mark.full] if seed else [])
    for arch in (80, 90)
    for seed in (0, 1, 2)
]


def unavailable_reason(cutlass: bool = False) -> str | None:
    """Why kernels of the CUDA backend cannot run here; None if they can. `cutlass`: those that need its headers too."""
    reason = native.unavailable_reason()
    if reason is not None:
        return reason
    if importlib.util.find_spec("chunkattn._native") is None:
        return "the native core is not built"
    if not cuda_runtime.available():
        return "the CUDA headers are not installed"
    for variant in variants.all_variants():
        if cutlass or not variant.cutlass:
            reason = builder.unbuildable_reason(variant)
            if reason is not None and store.find(variant) is None:
                return reason
    return None


def skip_unless_available(cutlass: bool = False) -> None:
    """For the head of a test module."""
    reason = unavailable_reason(cutlass)
    if reason is not None:
        pytest.skip(reason, allow_module_level=True)


def open_session(run: tuple[int, int], monkeypatch: pytest.MonkeyPatch, **options: object) -> Iterator[Session]:
    """A session of one (architecture, seed), in which index tensors are checked as in debug mode: many tests of the
    operators want an error."""
    debugging = dataclasses.replace(chunkattn.env.SETTINGS, debug=True)
    monkeypatch.setattr("chunkattn.ops.SETTINGS", debugging)
    monkeypatch.setattr("chunkattn.backends.cuda.backend.SETTINGS", debugging)
    arch, seed = run
    with emulated(arch, Options.for_seed(seed, **options)) as session:
        yield session

"""Backends under test, the two tiers, and what every test of an operator needs.

The default tier covers every pair of factors once. ``-m full`` (or ``-m "full or not full"`` for everything) adds
the long tier: more covering arrays, long contexts, huge pools.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
import torch

import chunkattn
from chunkattn.testing import AttentionInputs, laws

HAS_NATIVE = importlib.util.find_spec("chunkattn._native") is not None
BACKENDS = [
    "reference",
    pytest.param("cpu", marks=pytest.mark.skipif(not HAS_NATIVE, reason="the native core is not built")),
]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: long tier, left out unless -m names it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "full" in (config.option.markexpr or ""):
        return
    kept = [item for item in items if not item.get_closest_marker("full")]
    dropped = [item for item in items if item.get_closest_marker("full")]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Name of a backend that runs on this machine."""
    return request.param


@pytest.fixture
def attend(backend: str) -> laws.AttendInto:
    """The attention operator of one backend: inputs -> (out, lse)."""
    return laws.operator(backend)


@pytest.fixture
def attend_with(backend: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Like ``attend``, with keyword arguments replaced for this call."""

    def call(inputs: AttentionInputs, **overrides: object) -> tuple[torch.Tensor, torch.Tensor]:
        options = {**inputs.options(), "return_lse": True, "backend": backend, **overrides}
        return chunkattn.attention(*inputs.batch(), **options)

    return call

"""Backends under test, the two tiers, and what every test of an operator needs.

The default tier covers every pair of factors once. ``-m full`` (or ``-m "full or not full"`` for everything) adds
the long tier: more covering arrays, long contexts, huge pools.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

# Waiting threads sleep instead of spinning: on a shared machine thousands of small operations take a tenth of the time.
# OpenMP reads this when torch loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

import chunkattn
from chunkattn.testing import AttentionInputs, laws

HAS_NATIVE = importlib.util.find_spec("chunkattn._native") is not None
BACKENDS = ["reference", "cpu"]


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
    if request.param == "cpu" and not HAS_NATIVE:
        pytest.skip("the native core is not built")
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


@pytest.fixture
def workspace_size(backend: str) -> Callable[[AttentionInputs], int]:
    """Bytes of a workspace that suffices for a batch, by the library's closed form."""

    def size(inputs: AttentionInputs) -> int:
        return chunkattn.workspace_bytes(
            spec_of(inputs),
            max_tokens=inputs.q.shape[0],
            max_seq_len=inputs.block_table.shape[1] * inputs.case.page_size,
            num_splits=inputs.case.num_splits,
            backend=backend,
        )

    return size


def spec_of(inputs: AttentionInputs) -> chunkattn.AttentionSpec:
    """The facts of a batch, as the library's choice of a backend sees them."""
    case = inputs.case
    return chunkattn.AttentionSpec(
        inputs.q.device.type,
        case.dtype,
        case.cache_dtype,
        case.num_q_heads,
        case.num_kv_heads,
        case.head_dim,
        case.value_dim,
        case.page_size,
        case.causal,
        case.window != (-1, -1),
        case.softcap > 0,
        case.alibi is not None,
        case.sinks,
        case.tree,
        {"token_head": "token"}.get(case.scale_mode, case.scale_mode),
        case.invariant,
    )

"""Values of hidden keys again, by the Triton kernels in the emulator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chunkattn.testing import laws

from . import triton_backend
from .session import emulated

triton_backend.skip_unless_available()
sys.path.append(str(Path(__file__).parents[1] / "attention"))

from test_hidden_values import CASES  # noqa: E402
from test_hidden_values import test_values_of_hidden_keys_do_not_matter as check  # noqa: E402

FAST = {("chunk", 80), ("few rows", 80), ("chunk", 90)}


@pytest.mark.parametrize(
    ("case", "arch"),
    [
        pytest.param(case, arch, marks=() if (case.name, arch) in FAST else pytest.mark.full, id=f"{case}-sm_{arch}")
        for case in CASES
        for arch in (80, 90)
    ],
)
def test_triton(case, arch):
    with emulated(arch):
        check(case, laws.operator("triton"))

"""Values of hidden keys again, by the Triton kernels in the emulator; and infinities that every row sees."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chunkattn.testing import laws

from . import triton_backend
from .seen_values import SEEN, check_seen
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


@pytest.mark.parametrize("arch", [80, pytest.param(90, marks=pytest.mark.full)])
@pytest.mark.parametrize("width", [8, 32, 64])
def test_infinities_that_every_row_sees(width: int, arch: int) -> None:
    with emulated(arch):
        check_seen(SEEN.but(head_dim_v=width), laws.operator("triton"))

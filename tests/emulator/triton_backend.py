"""The Triton backend in the emulator, as the `backend` of the operators' own tests."""

from __future__ import annotations

import pytest

ARCHS = (80, 90)


def emulated_on(*archs: int) -> list[object]:
    """Parameters that open the emulator for each architecture."""
    return [pytest.param(arch, marks=pytest.mark.emulated(arch=arch), id=f"sm_{arch}") for arch in archs]


@pytest.fixture(params=emulated_on(*ARCHS))
def backend(request: pytest.FixtureRequest, emulator: object) -> str:
    """Name of the backend under test; the emulator is open."""
    return "triton"

"""The emulator's own tests use its pytest plugin."""

from __future__ import annotations

from .plugin import (  # noqa: F401
    _emulated_session,
    emulator,
    emulator_seed,
    pytest_addoption,
    pytest_configure,
    pytest_generate_tests,
    pytest_runtest_makereport,
)

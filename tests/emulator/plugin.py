"""pytest plugin: `@pytest.mark.emulated(arch=90, seeds=3)` runs a test's GPU kernels in the emulator.

The test runs once for each seed. A failure prints the seed and how to run it again. Load the plugin with
`-p` or from a conftest.py; tests/emulator/conftest.py does the latter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import native
from .launch import Options
from .session import Session, emulated, note_told

_SEED_FIXTURE = "emulator_seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("emulator")
    group.addoption("--emulator-seed", type=int, default=None, help="run emulated tests with this seed only")
    group.addoption("--emulator-counters", type=Path, default=None, help="folder for the counters of each test, JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "emulated(arch=90, seeds=3): run the test's GPU kernels in the PTX emulator, once for each seed",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("emulated")
    if marker is None or getattr(metafunc.definition, "emulator_seeds", False):
        return
    metafunc.definition.emulator_seeds = True  # the plugin may be loaded twice, by -p and by a conftest
    if _SEED_FIXTURE not in metafunc.fixturenames:
        metafunc.fixturenames.append(_SEED_FIXTURE)
    only = metafunc.config.getoption("--emulator-seed", default=None)
    seeds = [only] if only is not None else list(range(marker.kwargs.get("seeds", 3)))
    metafunc.parametrize(_SEED_FIXTURE, seeds, ids=[f"seed{seed}" for seed in seeds], indirect=True)


@pytest.fixture
def emulator_seed(request: pytest.FixtureRequest) -> int:
    """Seed of the schedule of this run."""
    return getattr(request, "param", 0)


@pytest.fixture
def emulator(request: pytest.FixtureRequest, emulator_seed: int) -> Iterator[Session]:
    """The open session of a test marked `emulated`; its launches and counters can be read."""
    reason = native.unavailable_reason()
    if reason:
        pytest.skip(f"no PTX emulator: {reason}")
    marker = request.node.get_closest_marker("emulated")
    arch = marker.kwargs.get("arch", 90) if marker else 90
    changes = marker.kwargs.get("options", {}) if marker else {}
    with emulated(arch, Options.for_seed(emulator_seed, **changes)) as session:
        yield session
    folder = request.config.getoption("--emulator-counters", default=None)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in request.node.name)
        session.write_counters(folder / f"{name}.json")


@pytest.fixture(autouse=True)
def _emulated_session(request: pytest.FixtureRequest) -> None:
    """Opens the session of a marked test that does not ask for it by name."""
    if request.node.get_closest_marker("emulated"):
        request.getfixturevalue("emulator")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    if call.excinfo is not None:
        note_told(call.excinfo.value)
    outcome = yield
    report = outcome.get_result()
    params = getattr(getattr(item, "callspec", None), "params", {})
    if report.failed and _SEED_FIXTURE in params:
        seed = params[_SEED_FIXTURE]
        name = item.nodeid.split("[")[0]
        report.sections.append(("emulator", f"seed {seed}; again with: pytest '{name}' --emulator-seed {seed}"))

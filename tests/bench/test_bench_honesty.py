"""The harness's self-test: a wrong provider gets no time, a dishonest one is seen."""

from __future__ import annotations

from collections.abc import Callable

import fakes
import pytest

from chunkattn.bench import session
from chunkattn.bench.providers.base import Call
from chunkattn.bench.record import Measured
from chunkattn.bench.rounds import Effort
from chunkattn.testing import AttentionInputs

SETTINGS = session.Settings(providers=(), max_buffers=2, effort=Effort(rounds=2, max_rounds=2, seconds=0.03))


def measure(make: Callable[..., object], **fields: object) -> Measured:
    """One fake provider on the small case."""
    fake = fakes.Fake("fake", make, **fields)  # type: ignore[arg-type]
    cell = session.run_case(fakes.SMALL, SETTINGS, extra={"fake": fake})
    entry = cell.provider("fake")
    assert entry is not None
    return entry


def test_an_honest_provider_is_timed_and_has_no_notes() -> None:
    entry = measure(fakes.honest)
    assert entry.status == "measured", entry.reason
    assert len(entry.samples) == 2
    assert 0 < entry.best <= entry.seconds
    assert entry.error is not None
    assert 0 < entry.error <= 1


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (fakes.zeros, "rows are wrong"),
        (fakes.mean_of_v, "rows are wrong"),
        (fakes.permuted_rows, "rows are wrong"),
        (fakes.swapped_heads, "rows are wrong"),
        (fakes.last_row_wrong, "worst is token 42"),
        (fakes.not_causal, "rows are wrong"),
        (fakes.nothing_written, "NaN"),
        (fakes.one_nan, "first in token 42"),
    ],
)
def test_a_wrong_output_is_refused(make: Callable[..., object], reason: str) -> None:
    entry = measure(make)
    assert entry.status == "refused"
    assert reason in entry.reason
    assert not entry.samples


@pytest.mark.parametrize("make", [fakes.cacher, fakes.keyed_cacher])
def test_a_provider_that_keeps_answers_is_refused(make: Callable[..., object]) -> None:
    entry = measure(make)
    assert entry.status == "refused"
    assert "a timed call answered otherwise" in entry.reason
    assert not entry.samples


def test_a_provider_that_returns_its_old_buffer_is_refused() -> None:
    entry = measure(fakes.buffer_keeper)
    assert entry.status == "refused"
    assert "NaN" in entry.reason


def test_a_provider_that_skips_work_while_timed_is_refused() -> None:
    entry = measure(fakes.skipper)
    assert entry.status == "refused"
    assert "a timed call answered otherwise" in entry.reason


def test_a_provider_that_sleeps_is_noted() -> None:
    entry = measure(fakes.sleeper)
    assert entry.status == "measured"
    assert entry.awake is not None
    assert entry.awake < 0.6
    assert any("waits or sleeps" in note for note in entry.notes)


def test_a_missing_provider_is_listed_with_its_command() -> None:
    entry = measure(fakes.honest, lacks="nowhere to be found", INSTALL="pip install fake")
    assert entry.status == "missing"
    assert entry.reason == "nowhere to be found; pip install fake"


def test_a_provider_that_raises_does_not_end_the_run() -> None:
    def make(inputs: object) -> object:
        raise RuntimeError("no such kernel\nand much more")

    entry = measure(make)
    assert entry.status == "failed"
    assert entry.reason == "RuntimeError: no such kernel"


def test_inputs_of_a_memory_bound_case_move_between_rounds() -> None:
    """A provider prepared on the old pools would go on reading them; it is prepared again on the new ones."""
    seen: list[int] = []

    def make(inputs: AttentionInputs) -> Call:
        seen.append(inputs.k_cache.data_ptr())
        return fakes.honest(inputs)

    decodes = fakes.SMALL.but(requests=((4, 1, 200),))
    effort = Effort(rounds=3, max_rounds=3, seconds=0.01)
    settings = session.Settings(providers=(), max_buffers=1, effort=effort)
    cell = session.run_case(decodes, settings, extra={"fake": fakes.Fake("fake", make)})
    entry = cell.provider("fake")
    assert entry is not None
    assert entry.status == "measured", entry.reason
    assert len(seen) == 3
    assert len(set(seen)) > 1

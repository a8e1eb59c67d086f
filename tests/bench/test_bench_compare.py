"""The regression verdict: silent on two runs of one build, certain about a tenth, on a machine that drifts."""

from __future__ import annotations

import random

import pytest

from chunkattn.bench import compare
from chunkattn.bench.record import Cell, Measured, Record, Sample

ROUNDS = 7


def noisy_samples(seconds: float, source: random.Random) -> list[Sample]:
    """Windows of a shared machine: 1.5 % of scatter, every sixth window disturbed, some of those unnoticed."""
    samples = []
    for _ in range(ROUNDS):
        time = seconds * source.gauss(1.0, 0.015)
        disturbed = source.random() < 1 / 6
        time *= source.uniform(1.1, 1.6) if disturbed else 1.0
        samples.append(Sample(time, 0.98 * time, 10, quiet=not disturbed or source.random() < 0.3))
    return samples


def noisy_record(seed: int, factor: float = 1.0, bound: str = "compute") -> Record:
    """One run: our case, two peers and the limits, on a machine up to 15 % slower than its best as a whole."""
    source = random.Random(seed)
    drift = source.uniform(1.0, 1.15)
    limits = {
        name: Measured(name, "unit/s", "measured", samples=noisy_samples(drift * seconds, source))
        for name, seconds in (("matmul", 0.04), ("paged_read", 0.005), ("copy", 0.008))
    }
    people = [
        Measured(name, name, "measured", samples=noisy_samples(drift * seconds, source))
        for name, seconds in (("chunkattn", 0.007 * factor), ("vllm-cpu", 0.013), ("torch-sdpa", 0.027))
    ]
    cell = Cell("case", "s", "case", "bf16", "bf16", 16, "nhd", {}, [], {}, 1, 1, 1, 1, 1)
    cell.limits, cell.providers, cell.bound, cell.floor_s = limits, people, bound, 0.005
    return Record(cells=[cell])


@pytest.mark.parametrize("bound", ["compute", "memory"])
def test_two_runs_of_one_build_are_never_a_regression(bound: str) -> None:
    for seed in range(20):
        changes = compare.compare(noisy_record(2 * seed, bound=bound), noisy_record(2 * seed + 1, bound=bound))
        assert [c.provider for c in changes] == ["chunkattn"]
        assert changes[0].verdict in ("same", "unclear"), (seed, changes)


@pytest.mark.parametrize("bound", ["compute", "memory"])
def test_a_tenth_is_always_found(bound: str) -> None:
    for seed in range(20):
        before, after = noisy_record(2 * seed, bound=bound), noisy_record(2 * seed + 1, 1.10, bound)
        assert compare.regressions(compare.compare(before, after)), (seed, compare.compare(before, after))
        assert compare.compare(after, before)[0].verdict == "faster"


def test_a_slower_machine_is_no_regression() -> None:
    before, after = noisy_record(1), noisy_record(1)
    for one in [*after.cells[0].providers, *after.cells[0].limits.values()]:
        for sample in one.samples:
            sample.median_s *= 1.3
    (change,) = compare.compare(before, after)
    assert change.drift == pytest.approx(1.3, rel=0.01)
    assert change.verdict == "same"


def test_peers_are_compared_on_request_and_never_regress() -> None:
    before, after = noisy_record(1), noisy_record(2)
    for sample in after.cells[0].providers[1].samples:
        sample.median_s *= 2
    changes = compare.compare(before, after, everybody=True)
    assert {c.provider: c.verdict for c in changes}["vllm-cpu"] == "slower"
    assert not compare.regressions(changes)


def one_thread(record: Record, neighbours: float) -> Record:
    """The record as a run of one thread leaves it that has to share its core: no window quiet, CPU time as it was."""
    (cell,) = record.cells
    cell.threads = 1
    source = random.Random(5)
    for one in [*cell.providers, *cell.limits.values()]:
        for sample in one.samples:
            sample.cpu_s, sample.quiet = one.samples[0].best_s * source.gauss(1.0, 0.01), False
            sample.median_s *= source.uniform(1.0, neighbours)
    return record


def clean(factor: float = 1.0) -> Record:
    """A record whose times are as they should be."""
    record = noisy_record(1, factor)
    seconds = {"chunkattn": 0.007 * factor, "vllm-cpu": 0.013, "torch-sdpa": 0.027}
    for one in [*record.cells[0].providers, *record.cells[0].limits.values()]:
        for sample in one.samples:
            sample.median_s = sample.best_s = seconds.get(one.provider, 0.01)
    return record


def test_one_thread_is_judged_by_its_cpu_time() -> None:
    """Neighbours that take the core away for half of the time hide nothing."""
    before = one_thread(clean(), 2.0)
    (same,) = compare.compare(before, one_thread(clean(), 3.0))
    assert (same.verdict, same.drift) == ("same", pytest.approx(1.0, abs=0.02))
    (slower,) = compare.compare(before, one_thread(clean(1.1), 3.0))
    assert slower.verdict == "slower"
    assert slower.change == pytest.approx(0.10, abs=0.02)


def test_a_run_on_a_machine_in_trouble_is_not_judged() -> None:
    """Where everything cost a fifth more, what is left after that is taken off decides nothing."""
    before, after = one_thread(clean(1.1), 2.0), one_thread(clean(), 2.0)
    for one in [*before.cells[0].providers, *before.cells[0].limits.values()]:
        for sample in one.samples:
            assert sample.cpu_s is not None
            sample.cpu_s *= 1.2
    (change,) = compare.compare(before, after)
    assert change.drift == pytest.approx(1 / 1.2, abs=0.03)
    assert change.verdict == "unclear"


def test_several_threads_on_a_busy_machine_are_not_judged() -> None:
    before, after = one_thread(clean(), 2.0), one_thread(clean(1.1), 2.0)
    before.cells[0].threads = after.cells[0].threads = 2
    assert compare.compare(before, after)[0].verdict == "unclear"


def test_other_numbers_of_threads_are_refused() -> None:
    before, after = one_thread(clean(), 2.0), one_thread(clean(), 2.0)
    after.cells[0].threads = 2
    with pytest.raises(ValueError, match="after: expected case with 1 threads as before, got 2"):
        compare.compare(before, after)


def test_a_neighbour_on_the_memory_bus_takes_half_of_what_he_costs_the_peers() -> None:
    """Peers and the read lose a tenth, arithmetic nothing: ours may have lost anything between, and is not blamed."""
    before, after = one_thread(clean(), 2.0), one_thread(clean(1.06), 2.0)
    for cell in (before.cells[0], after.cells[0]):
        cell.bound = "memory"
    slowed = [p for p in after.cells[0].providers if p.provider != "chunkattn"] + [after.cells[0].limits["paged_read"]]
    for one in slowed:
        for sample in one.samples:
            assert sample.cpu_s is not None
            sample.cpu_s *= 1.1
    (change,) = compare.compare(before, after)
    assert change.drift == pytest.approx(1.05, abs=0.02)
    assert change.verdict == "same"


def test_cases_of_one_file_alone_are_left_out() -> None:
    before, after = noisy_record(1), noisy_record(2)
    after.cells[0].key = "another"
    assert compare.compare(before, after) == []


def test_typical_takes_quiet_windows_alone() -> None:
    samples = [Sample(1.0, 1.0, 1, True), Sample(1.0, 1.0, 1, True), Sample(0.1, 0.1, 1, False)]
    assert compare.typical(samples) == 1.0
    assert compare.typical([Sample(2.0, 2.0, 1, False)]) == 2.0


def test_a_run_without_quiet_windows_is_unclear() -> None:
    before, after = noisy_record(1), noisy_record(2, 3.0)
    for sample in after.cells[0].providers[0].samples:
        sample.quiet = False
    (change,) = compare.compare(before, after)
    assert change.verdict == "unclear"

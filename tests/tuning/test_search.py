"""The search on simulated machines: it finds what is faster, and takes nothing that is not, however loud they are."""

from __future__ import annotations

import math
import random

import pytest

from chunkattn.tuning.search import LEAST_GAIN, OutOfTime, Refused, Search, Verdict


class Machine:
    """Candidates with known times on cases; a call takes that long, times noise."""

    def __init__(self, times: list[list[float]], *, noise: float = 0.0, bursts: float = 0.0, seed: int = 0) -> None:
        self.times, self.noise, self.bursts = times, noise, bursts
        self.source = random.Random(seed)
        self.calls = 0
        self.wrong: set[int] = set()

    def measure(self, candidate: int, case: int) -> float:
        self.calls += 1
        if candidate in self.wrong:
            raise Refused("rows are wrong")
        factor = math.exp(abs(self.source.gauss(0, self.noise)))
        if self.source.random() < self.bursts:  # somebody else has the core
            factor *= self.source.uniform(1.2, 2.5)
        return self.times[candidate][case] * factor

    def search(self, **options: object) -> Verdict:
        return Search(self.measure, len(self.times), len(self.times[0]), **options).run()  # type: ignore[arg-type]


def test_the_fastest_is_found_and_its_gain_told() -> None:
    times = [[1.0, 2.0], [0.9, 1.9], [0.5, 1.0], [1.1, 2.2], *[[1.2, 2.0]] * 12]
    verdict = Machine(times, noise=0.02).search()
    assert verdict.winner == 2
    assert verdict.gain == pytest.approx(2.0, rel=0.1)


def test_a_default_that_nobody_beats_stays_after_one_pass() -> None:
    machine = Machine([[1.0], *[[1.3]] * 15])
    verdict = machine.search()
    assert (verdict.winner, verdict.gain) == (0, 1.0)
    assert machine.calls <= 3 * 16


@pytest.mark.parametrize("bursts", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.4])
def test_no_slower_setting_is_ever_taken(noise: float, bursts: float) -> None:
    """15 candidates that are 3 to 20 % slower, on a loud machine, 60 times."""
    for seed in range(60):
        slower = [[1.03 + 0.17 * (i / 14)] * 2 for i in range(15)]
        verdict = Machine([[1.0, 1.0], *slower], noise=noise, bursts=bursts, seed=seed).search(seed=seed)
        assert verdict.winner == 0, f"seed {seed}: took one that is {slower[verdict.winner - 1][0] - 1:.0%} slower"


def test_equal_settings_are_seldom_taken_for_faster() -> None:
    taken = sum(
        Machine([[1.0]] * 16, noise=0.1, bursts=0.3, seed=seed).search(seed=seed).winner != 0 for seed in range(200)
    )
    assert taken <= 6


def test_gains_within_the_noise_are_left() -> None:
    verdict = Machine([[1.0], [1 / (1 + LEAST_GAIN / 2)]]).search()
    assert verdict.winner == 0


def test_faster_on_average_is_not_enough() -> None:
    """Twice as fast on one batch, a tenth slower on another."""
    verdict = Machine([[1.0, 1.0], [0.5, 1.1]], noise=0.01).search()
    assert verdict.winner == 0


def test_luck_in_the_first_pass_does_not_count() -> None:
    """A candidate that is only fast until the data is renewed."""
    machine = Machine([[1.0], [0.5]])

    def renew() -> int:
        machine.times[1][0] = 1.0
        return 1

    assert machine.search(renew=renew).winner == 0


def test_what_suits_only_the_batches_of_the_first_pass_is_left() -> None:
    """The second pass has more batches; on one of them the candidate loses a twentieth."""
    machine = Machine([[1.0, 1.0, 1.0, 1.0], [0.8, 0.8, 0.8, 1.05]], noise=0.005)
    search = Search(machine.measure, 2, 2, renew=lambda: 4)
    assert search.run().winner == 0
    assert Search(machine.measure, 2, 2, renew=lambda: 3).run().winner == 1


def test_wrong_answers_are_refused_however_fast() -> None:
    machine = Machine([[1.0], [0.1], [0.8]], noise=0.01)
    machine.wrong = {1}
    verdict = machine.search()
    assert verdict.winner == 2
    assert verdict.refused == {1: "rows are wrong"}


def test_an_answer_that_turns_wrong_in_the_second_pass_is_refused() -> None:
    machine = Machine([[1.0], [0.5]])
    verdict = machine.search(renew=lambda: machine.wrong.add(1) or 1)
    assert (verdict.winner, verdict.refused) == (0, {1: "rows are wrong"})


def test_a_wrong_default_is_an_error() -> None:
    machine = Machine([[1.0], [0.5]])
    machine.wrong = {0}
    with pytest.raises(Refused):
        machine.search()


@pytest.mark.parametrize("deadline", [-1, 0, 2, 6, 10])
@pytest.mark.parametrize("other", [0.5, 2.0])
def test_time_that_runs_out_decides_nothing(other: float, deadline: int) -> None:
    ticks = iter(range(10_000))
    verdict = Machine([[1.0], [other]]).search(deadline=deadline, clock=lambda: next(ticks))
    done = other > 1 and deadline >= 2  # after one pass there is nothing left to confirm
    assert (verdict.winner, verdict.complete) == (0, done)


@pytest.mark.parametrize("calls", [0, 3, 20])
def test_time_that_runs_out_while_measuring_decides_nothing_and_keeps_what_was_refused(calls: int) -> None:
    machine = Machine([[1.0], [0.5], [0.4]])
    machine.wrong = {2}

    def measure(candidate: int, case: int) -> float:
        if machine.calls == calls:
            raise OutOfTime
        return machine.measure(candidate, case)

    verdict = Search(measure, 3, 1).run()
    assert (verdict.winner, verdict.complete) == (0, False)
    assert verdict.refused == ({2: "rows are wrong"} if calls else {})


def test_progress_rises_to_the_end() -> None:
    shares: list[float] = []
    Machine([[1.0], [0.5]]).search(progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0

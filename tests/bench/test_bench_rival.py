"""Two builds in the same rounds: the worker gives right answers, moves, and a slower build is called slower."""

from __future__ import annotations

from pathlib import Path

import fakes
import pytest

import chunkattn
from chunkattn.bench import compare, rival, session
from chunkattn.bench.record import Measured, Record, Sample
from chunkattn.bench.rounds import Effort

HERE = str(Path(chunkattn.__file__).parent.parent)


def test_a_build_against_itself_is_checked_and_timed() -> None:
    settings = session.Settings(("chunkattn",), Effort(2, 2, 0.02), max_buffers=2, against=HERE)
    decodes = fakes.SMALL.but(requests=((4, 1, 200),))
    cell = session.run_case(decodes, settings)
    other = cell.provider("rival")
    assert other is not None
    assert other.status == "measured", other.reason
    assert len(other.samples) == 2
    assert other.error is not None
    assert 0 < other.error <= 1
    (change,) = compare.rivalry(Record(cells=[cell]))
    assert change.before_s > 0


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--against: expected a folder with the package chunkattn"):
        rival.Process(tmp_path)


def test_a_package_that_does_not_import_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chunkattn").mkdir()
    (tmp_path / "chunkattn" / "__init__.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(ValueError, match="ended with status 3"):
        rival.Process(tmp_path)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "same"), (1.1, "slower")])
def test_one_thread_takes_turns_by_cpu_time(factor: float, verdict: str) -> None:
    """Nobody is ever quiet, and the wall time of a round is anybody's guess."""
    walls = [1.0, 2.5, 1.2, 3.0, 1.4, 1.1, 2.2]
    mine, other = (
        Measured(name, "", "measured", samples=[Sample(wall, wall, 1, False, cpu) for wall in order])
        for name, cpu, order in (("chunkattn", 0.01 * factor, walls), ("rival", 0.01, walls[::-1]))
    )
    cell = session.run_case(fakes.SMALL, session.Settings((), Effort(1, 1, 0.001), max_buffers=1))
    cell.providers, cell.limits, cell.threads = [mine, other], {}, 1
    (change,) = compare.rivalry(Record(cells=[cell]))
    assert change.verdict == verdict


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "same"), (1.1, "slower"), (0.9, "faster")])
def test_the_verdict_is_taken_round_by_round(factor: float, verdict: str) -> None:
    """Rounds that differ by half among themselves, as on a shared machine, do not hide a tenth."""
    drift = [1.0, 1.5, 1.2, 1.0, 1.4, 1.1, 1.3]
    mine = Measured("chunkattn", "", "measured", samples=[Sample(factor * d, d, 1, True) for d in drift])
    other = Measured("rival", "", "measured", samples=[Sample(d, d, 1, True) for d in drift])
    cell = session.run_case(fakes.SMALL, session.Settings((), Effort(1, 1, 0.001), max_buffers=1))
    cell.providers = [mine, other]
    (change,) = compare.rivalry(Record(cells=[cell]))
    assert change.verdict == verdict
    assert bool(compare.regressions([change])) is (verdict == "slower")

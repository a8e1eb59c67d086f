"""Scaling: families of cases, and the fit of time on the work that the formulas count."""

from __future__ import annotations

import pytest

from chunkattn.bench import markdown, page, scaling
from chunkattn.bench.record import Cell, Measured, Record, Sample


def family(times: list[float], name: str = "batch", bound: str = "memory") -> list[Cell]:
    """Cells of 1, 2, 4, … requests with these times, a megabyte and a GFLOP a request."""
    cells = []
    for number, time in enumerate(times):
        size = 2**number
        mine = Measured("chunkattn", "chunkattn", "measured", samples=[Sample(time, time, 1, True)])
        heads = {"num_q_heads": 1, "num_kv_heads": 1, "head_dim": 64, "head_dim_v": 64}
        cell = Cell(
            f"{name}{size}", "s", f"{name}{size}", "bf16", "bf16", 16, "nhd", {"batch": size}, [[size, 1, 9]], heads,
            size * 10**9, size * 10**6, 1, 1, 1,
        )  # fmt: skip
        cell.rates, cell.floor_s, cell.bound = {"matmul": 1e12, "paged_read": 1e9}, 1e-3 * size, bound
        cell.limits = {rate: Measured(rate, "/s", "measured") for rate in cell.rates}
        cell.providers = [mine]
        cells.append(cell)
    return cells


@pytest.mark.parametrize(("bound", "work", "floor"), [("memory", "MB", 1e-3), ("compute", "GFLOP", 1e-3)])
def test_a_fixed_cost_and_a_rate_are_found(bound: str, work: str, floor: float) -> None:
    fit = scaling.growth(family([0.0005 + 0.002 * 2**n for n in range(5)], bound=bound), "batch")
    assert (fit.work, fit.floor_slope_s) == (work, pytest.approx(floor))
    assert fit.fixed_s == pytest.approx(0.0005)
    assert fit.slope_s == pytest.approx(0.002)
    assert fit.r2 == pytest.approx(1.0)
    assert fit.deviation < 1e-9
    assert fit.floors == pytest.approx((2.0 + 0.5 / 16, 2.5))


def test_a_cliff_shows_where_it_is() -> None:
    times = [0.002 * 2**n for n in range(6)]
    times[3] *= 1.3
    fit = scaling.growth(family(times), "batch")
    assert fit.worst == 8
    assert fit.deviation > 0.15
    assert fit.r2 < 0.999


def test_a_growth_faster_than_the_work_is_no_line() -> None:
    fit = scaling.growth(family([1e-4 * 4**n for n in range(6)]), "batch")
    assert fit.fixed_s == 0.0
    assert fit.deviation > 0.3


def test_families_are_cells_that_differ_in_one_size() -> None:
    cells = family([0.1, 0.2, 0.3], "a") + family([0.1, 0.2], "b")
    cells[0].axes = {"batch": 1, "history": 2}
    assert scaling.families(cells) == {}
    assert list(scaling.families(family([0.3, 0.2, 0.1][::-1], "a"))) == [("a", "batch")]


def test_the_reports_print_the_fit() -> None:
    record = Record(cells=family([0.002, 0.004, 0.008]))
    assert "* batch over batch, 1 to 4. Ours: 0.000 ms + 2 ms a MB" in markdown.render(record)
    html = page.render(record)
    assert "Ours: 0.000 ms + 2 ms a MB (the limit&#x27;s rate: 1); R² 1.00000, largest deviation 0.0% at batch" in html

"""How a time grows with one size of the batch, held against the work that the formulas count."""

from __future__ import annotations

from dataclasses import dataclass

from chunkattn.bench.record import Cell
from chunkattn.bench.table import ours

FEWEST = 3
"""Sizes that a family needs to be drawn and fitted."""


@dataclass(frozen=True)
class Growth:
    """The fit ``time = fixed + slope * work`` over a family of cases, with least squares of the relative deviations.

    Attributes:
        work: "GFLOP" where most of the family is bound by arithmetic, else "MB".
        fixed_s: seconds of a call without work.
        slope_s: seconds of a unit of work.
        floor_slope_s: the same at the machine's own rate, the median over the family.
        r2: share of the variance of time that the fit explains.
        deviation: the largest relative distance of a time from the fit.
        worst: the size that it is at.
        floors: least and most times the floor that a case takes, each against the rates of its own rounds.
    """

    work: str
    fixed_s: float
    slope_s: float
    floor_slope_s: float
    r2: float
    deviation: float
    worst: float
    floors: tuple[float, float]

    def seconds(self, cell: Cell) -> float:
        """What the fit says of a case."""
        return self.fixed_s + self.slope_s * (cell.flops / 1e9 if self.work == "GFLOP" else cell.bytes / 1e6)

    def sentence(self, axis: str) -> str:
        """The fit in words."""
        return (
            f"Ours: {1e3 * self.fixed_s:.3f} ms + {1e3 * self.slope_s:.4g} ms a {self.work} (the limit's rate: "
            f"{1e3 * self.floor_slope_s:.4g}); R² {self.r2:.5f}, largest deviation {self.deviation:.1%} at {axis} "
            f"{self.worst:g}; {self.floors[0]:.2f} to {self.floors[1]:.2f} times the floor of the same rounds"
        )


def families(cells: list[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """Cells with one axis and a time of ours, by (name without its number, axis), in order of size."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if len(cell.axes) == 1 and ours(cell) is not None:
            axis = next(iter(cell.axes))
            found.setdefault((cell.name.rstrip("0123456789"), axis), []).append(cell)
    for (_, axis), family in found.items():
        family.sort(key=lambda cell: cell.axes[axis])
    return {key: family for key, family in found.items() if len(family) >= FEWEST}


def growth(family: list[Cell], axis: str) -> Growth:
    """Fits a family.

    Args:
        family: cells of one kind in order of size, at least `FEWEST`.
        axis: the size they differ in.
    """
    arithmetic = 2 * sum(cell.bound == "compute" for cell in family) > len(family)
    works = [cell.flops / 1e9 if arithmetic else cell.bytes / 1e6 for cell in family]
    times = [one.seconds for one in map(ours, family) if one is not None]
    fixed, slope = _fit(works, times)
    deviations = [abs(fixed + slope * work - time) / time for work, time in zip(works, times, strict=True)]
    over = [time / cell.floor_s for time, cell in zip(times, family, strict=True)]
    mean = sum(times) / len(times)
    rest = sum((fixed + slope * work - time) ** 2 for work, time in zip(works, times, strict=True))
    rates = sorted(cell.rates["matmul"] / 1e9 if arithmetic else cell.rates["paged_read"] / 1e6 for cell in family)
    worst = max(range(len(family)), key=deviations.__getitem__)
    return Growth(
        work="GFLOP" if arithmetic else "MB",
        fixed_s=fixed,
        slope_s=slope,
        floor_slope_s=1.0 / rates[len(rates) // 2],
        r2=1.0 - rest / sum((time - mean) ** 2 for time in times),
        deviation=deviations[worst],
        worst=family[worst].axes[axis],
        floors=(min(over), max(over)),
    )


def _fit(works: list[float], times: list[float]) -> tuple[float, float]:
    """(fixed, slope) with the least sum of squared relative deviations, fixed not below zero."""
    # Divided by its time every row weighs alike: 1 = fixed / time + slope * work / time.
    a, b = [1.0 / time for time in times], [work / time for work, time in zip(works, times, strict=True)]
    aa, bb, ab = (sum(x * y for x, y in zip(p, q, strict=True)) for p, q in ((a, a), (b, b), (a, b)))
    determinant = aa * bb - ab * ab
    fixed, slope = ((sum(a) * bb - sum(b) * ab) / determinant, (sum(b) * aa - sum(a) * ab) / determinant)
    return (fixed, slope) if fixed >= 0.0 else (0.0, sum(b) / bb)

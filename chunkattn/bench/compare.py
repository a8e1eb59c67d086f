"""Two result files: which cases got slower, beyond what this machine's noise explains.

Between two runs a shared machine may be faster or slower as a whole. Both files hold, for every case, the same
references (torch.mm, a plain read of the pages, the peers) measured in the same rounds; the drift of the references
that behave alike is taken off ours before anything is called a change.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from chunkattn.bench import providers
from chunkattn.bench.record import Cell, Measured, Record, Sample

SMALLEST = 0.05
"""Changes below this are never reported: two runs of one build differ by up to that much on a shared machine."""

_TOO_NOISY = 0.10
_FEWEST_QUIET = 2


@dataclass(frozen=True)
class Change:
    """One provider on one case in both files.

    Attributes:
        key: of the case.
        provider: whose time.
        before_s, after_s: seconds of a call.
        drift: how much slower the references became, as a factor.
        change: after / before / drift - 1.
        noise: half-width within which a change means nothing.
        verdict: "slower", "faster", "same" or "unclear" (the noise hides a tenth, or hardly a window was quiet).
    """

    key: str
    provider: str
    before_s: float
    after_s: float
    drift: float
    change: float
    noise: float
    verdict: str


def compare(before: Record, after: Record, *, everybody: bool = False) -> list[Change]:
    """Compares the cases that both files hold.

    Args:
        before, after: the files.
        everybody: the peers too, not only our own providers.
    """
    changes = []
    for cell in after.cells:
        old = before.cell(cell.key)
        if old is None:
            continue
        for one in cell.measured():
            earlier = old.provider(one.provider)
            if earlier is not None and earlier.samples and (everybody or one.provider in providers.OURS):
                changes.append(_change(old, cell, earlier, one))
    return changes


def regressions(changes: list[Change]) -> list[Change]:
    """Our own cases that got slower."""
    return [c for c in changes if c.verdict == "slower" and c.provider in providers.OURS]


def _change(old: Cell, new: Cell, earlier: Measured, later: Measured) -> Change:
    before, after = typical(earlier.samples), typical(later.samples)
    drift, drift_noise = _drift(old, new, later.provider)
    change = after / before / drift - 1.0
    noise = 3.0 * math.hypot(_standard_error(earlier.samples), _standard_error(later.samples), drift_noise)
    limit = max(SMALLEST, noise)
    if min(_quiet(earlier), _quiet(later)) < _FEWEST_QUIET:
        verdict = "unclear"
    elif change > limit:
        verdict = "slower"
    elif change < -limit:
        verdict = "faster"
    else:
        verdict = "unclear" if noise > _TOO_NOISY else "same"
    return Change(new.key, later.provider, before, after, drift, change, limit, verdict)


def _quiet(one: Measured) -> int:
    return sum(sample.quiet for sample in one.samples)


def typical(samples: list[Sample]) -> float:
    """Seconds of a call: the lower quartile of the windows' medians, quiet ones if there are any.

    Disturbance only ever adds time, so the lower quartile moves less between runs than the median.
    """
    times = sorted(s.median_s for s in samples if s.quiet) or sorted(s.median_s for s in samples)
    if len(times) < 2:
        return times[0]
    return statistics.quantiles(times, n=4, method="inclusive")[0]


def _standard_error(samples: list[Sample]) -> float:
    """Relative standard error of `typical`, from the spread of the lower half of the windows."""
    times = sorted(s.median_s for s in samples if s.quiet) or sorted(s.median_s for s in samples)
    low, middle = typical(samples), statistics.median(times)
    # For normal data median - quartile is 0.674 sigma, and a quartile's error is 1.36 sigma / sqrt(n).
    return 1.36 * (middle - low) / 0.674 / low / math.sqrt(len(times))


def _drift(old: Cell, new: Cell, provider: str) -> tuple[float, float]:
    """How much slower the cell's references became, and the standard error of that (both relative).

    The limit that bounds the case always counts; so do the peers, because they do the same work.
    """
    limit = "matmul" if new.bound == "compute" else "paged_read"
    shifts, errors = [], []
    pairs = [(old.limits.get(limit), new.limits.get(limit))]
    pairs += [
        (old.provider(p.provider), p)
        for p in new.measured()
        if p.provider not in providers.OURS and p.provider != provider
    ]
    for earlier, later in pairs:
        if earlier is None or later is None or not earlier.samples or not later.samples:
            continue
        shifts.append(math.log(typical(later.samples) / typical(earlier.samples)))
        errors.append(math.hypot(_standard_error(earlier.samples), _standard_error(later.samples)))
    if not shifts:
        return 1.0, 0.0
    # A drift within the references' own noise is none.
    middle, error = statistics.median(shifts), statistics.median(errors) / math.sqrt(len(errors))
    if abs(middle) < 2.0 * error:
        middle = 0.0
    return math.exp(middle), error


def rivalry(record: Record) -> list[Change]:
    """Our build against the other one that took turns with it (`--against`), case by case, round by round."""
    changes = []
    for cell in record.cells:
        mine, other = cell.provider(providers.OURS[0]), cell.provider("rival")
        if mine is None or other is None or not mine.samples or not other.samples:
            continue
        pairs = list(zip(other.samples, mine.samples, strict=False))
        quiet = [(a, b) for a, b in pairs if a.quiet and b.quiet]
        shifts = sorted(math.log(b.median_s / a.median_s) for a, b in quiet or pairs)
        middle = statistics.median(shifts)
        # 1.4826 MAD estimates sigma; the median's standard error is 1.25 sigma / sqrt(n).
        sigma = 1.4826 * statistics.median(abs(shift - middle) for shift in shifts)
        noise = 3.0 * 1.25 * sigma / math.sqrt(len(shifts))
        limit = max(SMALLEST, noise)
        verdict = "slower" if middle > limit else "faster" if middle < -limit else "same"
        if len(quiet) < _FEWEST_QUIET or (verdict == "same" and noise > _TOO_NOISY):
            verdict = "unclear"
        changes.append(
            Change(cell.key, mine.provider, other.seconds, mine.seconds, 1.0, math.expm1(middle), limit, verdict)
        )
    return changes

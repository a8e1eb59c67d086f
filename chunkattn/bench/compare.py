"""Two result files: which cases got slower, beyond what this machine's noise explains.

Between two runs a shared machine may be faster or slower as a whole. Both files hold, for every case, the same
references (torch.mm, torch.exp, a plain read of the pages, the peers) measured in the same rounds. What the arithmetic
drifted by is the clock, and everybody's; what the peers or the read drifted by beyond that is a neighbour on the memory
bus, which ours feels by something between nothing and as much.

With one thread (`run --threads 1`) CPU time is compared, which goes on only while the call does: it holds on a machine
that is never quiet. With more, threads wait for each other, and only windows of wall time without neighbours count.
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
_MOST_DRIFT = 0.10  # of CPU time, that can be taken off well enough to see a tenth

_Pair = tuple[Measured | None, Measured | None]


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
        verdict: "slower", "faster", "same" or "unclear": the noise hides a tenth, hardly a window was quiet, or the
            machine itself drifted by more than a tenth. Measure again then.
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

    Raises:
        ValueError: a case was measured with other numbers of threads.
    """
    changes = []
    for cell in after.cells:
        old = before.cell(cell.key)
        if old is None:
            continue
        if old.threads and cell.threads and old.threads != cell.threads:
            raise ValueError(f"after: expected {cell.key} with {old.threads} threads as before, got {cell.threads}")
        for one in cell.measured():
            earlier = old.provider(one.provider)
            if earlier is not None and earlier.samples and (everybody or one.provider in providers.OURS):
                changes.append(_change(old, cell, earlier, one))
    return changes


def regressions(changes: list[Change]) -> list[Change]:
    """Our own cases that got slower."""
    return [c for c in changes if c.verdict == "slower" and c.provider in providers.OURS]


def _change(old: Cell, new: Cell, earlier: Measured, later: Measured) -> Change:
    cpu = _one_thread(old, new)
    before, after = typical(earlier.samples, cpu=cpu), typical(later.samples, cpu=cpu)
    drift, drift_noise = _drift(old, new, later.provider, cpu=cpu)
    change = after / before / drift - 1.0
    errors = (_standard_error(one.samples, cpu=cpu) for one in (earlier, later))
    noise = math.hypot(*(3.0 * error for error in errors), drift_noise)
    limit = max(SMALLEST, noise)
    undecided = abs(math.log(drift)) > _MOST_DRIFT if cpu else min(_quiet(earlier), _quiet(later)) < _FEWEST_QUIET
    if undecided:
        verdict = "unclear"
    elif change > limit:
        verdict = "slower"
    elif change < -limit:
        verdict = "faster"
    else:
        verdict = "unclear" if noise > _TOO_NOISY else "same"
    return Change(new.key, later.provider, before, after, drift, change, limit, verdict)


def _one_thread(*cells: Cell) -> bool:
    """Whether CPU time tells how long a call takes, and every window has it."""
    everything = [one for cell in cells for one in (*cell.providers, *cell.limits.values())]
    return all(cell.threads == 1 for cell in cells) and all(
        sample.cpu_s for one in everything for sample in one.samples
    )


def _quiet(one: Measured) -> int:
    return sum(sample.quiet for sample in one.samples)


def _times(samples: list[Sample], *, cpu: bool) -> list[float]:
    """Seconds of the windows in order: CPU time, or wall time of the quiet windows if there are any."""
    if cpu:
        return sorted(s.cpu_s for s in samples if s.cpu_s is not None)
    return sorted(s.median_s for s in samples if s.quiet) or sorted(s.median_s for s in samples)


def _seconds(sample: Sample, *, cpu: bool) -> float:
    return sample.cpu_s if cpu and sample.cpu_s is not None else sample.median_s


def _fastest(samples: list[Sample]) -> list[float]:
    """CPU seconds of the fastest third of the windows.

    A neighbour who evicts caches, or a clock that drops for a while, is in the rest; it was seen to be in half of them.
    """
    times = _times(samples, cpu=True)
    return times[: max(2, math.ceil(len(times) / 3))]


def typical(samples: list[Sample], *, cpu: bool = False) -> float:
    """Seconds of a call: the mean CPU time of the fastest third of the windows, or the lower quartile of wall times.

    Of wall time the quiet windows count if there are any. Disturbance only ever adds to either, so that the fast side
    moves less between runs than the median.
    """
    if cpu:
        return statistics.fmean(_fastest(samples))
    times = _times(samples, cpu=False)
    return times[0] if len(times) < 2 else statistics.quantiles(times, n=4, method="inclusive")[0]


def _standard_error(samples: list[Sample], *, cpu: bool) -> float:
    """Relative standard error of `typical`, from the spread of the faster windows."""
    low = typical(samples, cpu=cpu)
    if cpu:
        # For normal data the error of the fastest third's mean is 1.2 / sqrt(n) of what it spans.
        third = _fastest(samples)
        return 1.2 * (third[-1] - third[0]) / low / math.sqrt(len(samples))
    times = _times(samples, cpu=False)
    # For normal data median - quartile is 0.674 sigma, and a quartile's error is 1.36 sigma / sqrt(n).
    return 1.36 * (statistics.median(times) - low) / 0.674 / low / math.sqrt(len(times))


def _median_error(values: list[float]) -> float:
    """Standard error of a median: 1.4826 MAD estimates sigma, of which it is 1.25 / sqrt(n)."""
    middle = statistics.median(values)
    return 1.25 * 1.4826 * statistics.median(abs(value - middle) for value in values) / math.sqrt(len(values))


def _drift(old: Cell, new: Cell, provider: str, *, cpu: bool) -> tuple[float, float]:
    """How much slower the machine became for our case, and how far off that may be (both relative).

    It lies between what the clock drifted by and what those drifted by who do the same work, the middle is taken. For
    a case of little arithmetic the plain read of its pages counts as much as the peers.
    """
    peers: list[_Pair] = [
        (old.provider(p.provider), p)
        for p in new.measured()
        if p.provider not in providers.OURS and p.provider != provider
    ]
    groups = [_limit_pairs(old, new, "matmul", "exp"), peers]
    if new.bound == "memory":
        groups.append(_limit_pairs(old, new, "paged_read"))
    clock, *work = [shift for shift in (_shift(group, cpu=cpu) for group in groups) if shift is not None]
    if not work:
        return math.exp(clock[0]), 1.5 * clock[1]
    middle = statistics.fmean(shift for shift, _ in work)
    error = math.hypot(*(one for _, one in work)) / len(work)
    return math.exp((clock[0] + middle) / 2.0), math.hypot(1.5 * clock[1], 1.5 * error, abs(middle - clock[0]) / 2.0)


def _limit_pairs(old: Cell, new: Cell, *names: str) -> list[_Pair]:
    return [(old.limits.get(name), new.limits.get(name)) for name in names]


def _shift(pairs: list[_Pair], *, cpu: bool) -> tuple[float, float] | None:
    """Median of log(after / before) over references, and its standard error; None if there is none."""
    shifts, errors = [], []
    for earlier, later in pairs:
        if earlier is None or later is None or not earlier.samples or not later.samples:
            continue
        shifts.append(math.log(typical(later.samples, cpu=cpu) / typical(earlier.samples, cpu=cpu)))
        errors.append(math.hypot(*(_standard_error(one.samples, cpu=cpu) for one in (earlier, later))))
    if not shifts:
        return None
    return statistics.median(shifts), statistics.median(errors) / math.sqrt(len(errors))


def rivalry(record: Record) -> list[Change]:
    """Our build against the other one that took turns with it (`--against`), case by case, round by round.

    With one thread by CPU time, else by wall time of the rounds without neighbours.
    """
    changes = []
    for cell in record.cells:
        mine, other = cell.provider(providers.OURS[0]), cell.provider("rival")
        if mine is None or other is None or not mine.samples or not other.samples:
            continue
        cpu = _one_thread(cell)
        pairs = list(zip(other.samples, mine.samples, strict=False))
        quiet = [(a, b) for a, b in pairs if cpu or (a.quiet and b.quiet)]
        shifts = [math.log(_seconds(b, cpu=cpu) / _seconds(a, cpu=cpu)) for a, b in quiet or pairs]
        middle, noise = statistics.median(shifts), 3.0 * _median_error(shifts)
        limit = max(SMALLEST, noise)
        verdict = "slower" if middle > limit else "faster" if middle < -limit else "same"
        if len(quiet) < _FEWEST_QUIET or (verdict == "same" and noise > _TOO_NOISY):
            verdict = "unclear"
        changes.append(
            Change(cell.key, mine.provider, other.seconds, mine.seconds, 1.0, math.expm1(middle), limit, verdict)
        )
    return changes

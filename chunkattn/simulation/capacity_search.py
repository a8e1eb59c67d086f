"""The highest arrival rate at which enough answers are good."""

from __future__ import annotations

from chunkattn.simulation.experiment import Experiment
from chunkattn.simulation.settings import Setting


def find_capacity(
    experiment: Experiment, setting: Setting, *, start: float, attainment: float = 0.9, precision: float = 0.05
) -> float:
    """Bisects the rate, as Vidur and Sarathi-Serve do.

    Args:
        experiment: with service-level objectives; every probe replays its whole trace.
        setting: how to schedule.
        start: first rate to try, as a factor of the trace's own.
        attainment: share of requests that have to be good.
        precision: relative width at which the search ends.

    Returns:
        A rate that is met, at most ``precision`` below one that is not; 0 if none down to ``start`` / 1024 is.
    """

    def met(rate: float) -> bool:
        return bool(experiment.run(setting, rate).summary["slo_attainment"] >= attainment)

    low, high = 0.0, start
    if met(start):
        while met(high):
            low, high = high, 2 * high
            if high > 1024 * start:
                return low
    else:
        while not met(high / 2):
            high /= 2
            if high < start / 1024:
                return 0.0
        low = high / 2
    while high - low > precision * high:
        middle = (low + high) / 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return low

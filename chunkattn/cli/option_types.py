"""What values options of several commands take."""

from __future__ import annotations

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """Numbers within bounds; infinity and NaN, which compare with a bound as they like, are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


POSITIVE = FiniteRange(min=0, min_open=True)
# Synthetic processes of `chunkattn.simulation`, which is imported when a command runs.
ARRIVALS = click.Choice(("azure-conv", "azure-code", "mooncake", "sharegpt", "arxiv", "bwb"))

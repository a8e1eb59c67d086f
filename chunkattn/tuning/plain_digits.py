"""Rounded numbers for people: never in powers of ten."""

from __future__ import annotations

import math
from decimal import Decimal


def plain(value: float, digits: int) -> str:
    """A number to some significant digits: ``1234.5`` to three is ``"1230"``."""
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def plain_with_bar(value: float, bar: float, digits: int) -> str:
    """``"814 ± 170"``: the error bar to two digits, the number to no more decimals than the bar; no bar where NaN."""
    if math.isnan(bar):
        return plain(value, digits)
    shown = Decimal(f"{bar:.1e}")
    places = max(0, -int(shown.as_tuple().exponent))
    return f"{value:.{places}f} ± {shown:f}"

"""A check on numbers that count something."""

from __future__ import annotations

import operator
from collections.abc import Sequence


def check_counts(arg: str, numbers: Sequence[int], least: int = 0) -> None:
    """Integers from `least` to what an int32 holds.

    Raises:
        TypeError: no integer.
        ValueError: out of range.
    """
    for number in numbers:
        try:
            whole = operator.index(number)
        except TypeError:
            whole = None
        if whole is None or isinstance(number, bool):
            raise TypeError(f"{arg}: expected integers, got {number!r}")
        if not least <= whole < 1 << 31:
            raise ValueError(f"{arg}: expected numbers from {least} to {(1 << 31) - 1}, got {whole}")

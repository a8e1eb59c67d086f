"""Checks on numbers that count something, and on lists of them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set


def check_list(arg: str, entries: object, expected: str = "a list") -> None:
    """Something with a length and an order, such as a list, a tuple, an array or a tensor.

    Raises:
        TypeError: anything else.
    """
    try:
        len(entries)  # type: ignore[arg-type]
        ordered = not isinstance(entries, str | bytes | Set | Mapping)
    except TypeError:
        ordered = False
    if not ordered:
        raise TypeError(f"{arg}: expected {expected}, got {type(entries).__name__}")


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

"""Numbers in messages."""

from __future__ import annotations

import math

import pytest

from chunkattn.tuning.plain_digits import plain, plain_with_bar


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(44.296, 4, "44.3"), (1234.5, 3, "1230"), (99999.0, 4, "100000"), (1.2e-5, 2, "0.000012"), (0.0, 3, "0")],
)
def test_plain(value: float, digits: int, text: str) -> None:
    assert plain(value, digits) == text


@pytest.mark.parametrize(
    ("value", "bar", "text"),
    [
        (814.3, 171.0, "814 ± 170"),
        (726.6, 1602.0, "727 ± 1600"),
        (44.296, 2.26, "44.3 ± 2.3"),
        (44.296, 1.999, "44.3 ± 2.0"),
        (44.296, 0.0226, "44.296 ± 0.023"),
        (44.296, math.nan, "44.3"),
    ],
)
def test_the_bar_decides_the_decimals(value: float, bar: float, text: str) -> None:
    assert plain_with_bar(value, bar, 4) == text

"""Storing numbers in fewer bits: clamp, round to the nearest, ties to even; the same bytes on every architecture."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def largest(FORMAT: tl.constexpr):
    return 127.0 if FORMAT == "int8" else (448.0 if FORMAT == "e4m3" else 57344.0)


@triton.jit
def _to_float8(x, MANTISSA: tl.constexpr, BIAS: tl.constexpr, ANCHOR: tl.constexpr):
    """Codes of fp32 values within the format's range, ties to even, NaN kept; the same on every architecture.

    Below the least normal number the step is constant: that of the fp32 numbers from ANCHOR on.
    """
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    dropped: tl.constexpr = 23 - MANTISSA
    even = (magnitude >> dropped) & 1
    normal = ((magnitude + ((1 << (dropped - 1)) - 1) + even) >> dropped) - ((127 - BIAS) << MANTISSA)
    small = (tl.abs(x) + ANCHOR).to(tl.int32, bitcast=True) - ((151 - MANTISSA - BIAS) << 23)
    code = tl.where(magnitude < ((128 - BIAS) << 23), small, normal)
    code = tl.where(x != x, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def encode(x, FORMAT: tl.constexpr):
    """Stored form of fp32 values: clamped, rounded to the nearest with ties to even."""
    most = largest(FORMAT)
    x = tl.where(x > most, most, tl.where(x < -most, -most, x))
    if FORMAT == "e4m3":
        return _to_float8(x, 3, 7, 16384.0)
    elif FORMAT == "e5m2":
        return _to_float8(x, 2, 15, 128.0)
    else:
        x = tl.where(x != x, 0.0, x)
        return ((x + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000).to(tl.int8)


@triton.jit
def magnitude(x):
    """|x| with 0 for NaN, which must not spoil the scale of its neighbours."""
    return tl.where(x != x, 0.0, tl.abs(x))

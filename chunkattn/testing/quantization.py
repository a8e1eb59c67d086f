"""How quantised KV is stored, spelled out value by value: clamp, then round to the nearest, ties to even.

The encoder searches the table of all values of the format instead of casting, so that it can check casts.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

QUANTIZED_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)

_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}


def largest_value(dtype: torch.dtype) -> float:
    """qmax: the largest magnitude a quantised dtype stores; values beyond are clamped to it."""
    return _LARGEST[dtype]


def quantize(x: Tensor, scale: Tensor | float, dtype: torch.dtype) -> Tensor:
    """``round_ne(clamp(x / scale))`` with the division in float32.

    Args:
        x: any shape, any float dtype.
        scale: positive, broadcastable to ``x``.
        dtype: one of the quantised dtypes, or a plain float dtype (then only divided and rounded).

    Returns:
        A tensor of ``dtype``. NaN stays NaN in fp8 and becomes 0 in int8.
    """
    scaled = x.to(torch.float32) / torch.as_tensor(scale, dtype=torch.float32)
    if dtype not in QUANTIZED_DTYPES:
        return scaled.to(dtype)
    largest = largest_value(dtype)
    clamped = scaled.clamp(-largest, largest)  # clamp keeps NaN
    if dtype == torch.int8:
        return torch.nan_to_num(clamped.round(), nan=0.0).to(torch.int8)  # torch.round rounds ties to even
    magnitudes = _magnitudes(dtype)
    magnitude = clamped.abs().double()
    above = torch.searchsorted(magnitudes, magnitude.nan_to_num(0.0)).clamp(max=len(magnitudes) - 1)
    below = (above - 1).clamp(min=0)
    up, down = magnitudes[above] - magnitude, magnitude - magnitudes[below]
    # Codes are ordered like their magnitudes, and a code is even when its mantissa is.
    code = torch.where(up < down, above, torch.where(down < up, below, torch.where(above % 2 == 0, above, below)))
    code = torch.where(torch.signbit(clamped), code + 0x80, code)
    code = torch.where(clamped.isnan(), torch.full_like(code, 0x7F), code)
    return code.to(torch.uint8).view(dtype)


@cache
def _magnitudes(dtype: torch.dtype) -> Tensor:
    """Float64 values of the codes 0, 1, 2, … of a format up to its largest finite one."""
    mantissa_bits, bias = (3, 7) if dtype == torch.float8_e4m3fn else (2, 15)
    values = []
    for code in range(0x7F):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        fraction = mantissa / (1 << mantissa_bits)
        value = (1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias)
        if value <= largest_value(dtype):
            values.append(value)
    return torch.tensor(values, dtype=torch.float64)


def dynamic_scale(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``amax / qmax`` over the last dim in float32, 1 where a row is all zeros."""
    amax = x.to(torch.float32).abs().amax(-1)
    return torch.where(amax == 0, torch.ones_like(amax), amax / largest_value(dtype))

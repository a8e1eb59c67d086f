"""The slopes FlashInfer uses where a plan asks for ALiBi."""

from __future__ import annotations

import torch
from torch import Tensor


def alibi_slopes(num_heads: int) -> Tensor:
    """fp32 [num_heads]: geometric from 2^(-8/n) on for a power of two n; between them for other counts.

    Source: Press et al., arXiv:2108.12409, §3 and the paper's code.
    """
    power = 1 << (num_heads.bit_length() - 1)
    first = 2.0 ** (-8.0 / power)
    slopes = [first ** (i + 1) for i in range(power)]
    between = 2.0 ** (-4.0 / power)
    slopes += [between ** (2 * i + 1) for i in range(num_heads - power)]
    return torch.tensor(slopes, dtype=torch.float32)

"""Head dims that are not multiples of 8, padded with zeros: a copy, as FlashAttention makes one."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

_STEP = 8


def padded(x: Tensor) -> Tensor:
    """x with its last dim padded to a multiple of 8; x itself where it is one."""
    return F.pad(x, (0, -x.shape[-1] % _STEP)) if x.shape[-1] % _STEP else x


def write_back(padded_cache: Tensor, cache: Tensor) -> None:
    """Copies what was appended to a padded copy into the cache it was made of; nothing where it is the cache."""
    if padded_cache is not cache:
        cache.copy_(padded_cache[..., : cache.shape[-1]])

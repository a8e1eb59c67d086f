"""Head dims that are not multiples of 8, padded with zeros: a copy, as FlashAttention makes one."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from chunkattn.types import MAX_HEAD_DIM

_STEP = 8


def padded_dim(dim: int) -> int:
    """The next multiple of 8; a dim that is refused stays as it came, for the message."""
    return dim + -dim % _STEP if 0 < dim <= MAX_HEAD_DIM else dim


def padded(x: Tensor) -> Tensor:
    """x with its last dim padded to `padded_dim`; x itself where it is that long."""
    more = padded_dim(x.shape[-1]) - x.shape[-1]
    return F.pad(x, (0, more)) if more else x


def require_equal(argument: str, x: Tensor, of: str, other: Tensor) -> None:
    """Raises ValueError unless both have the same head dim; padded, two that differ might.

    Args:
        argument, of: what x and other are called.
    """
    if x.shape[-1] != other.shape[-1]:
        raise ValueError(f"{argument}: expected the head dim of {of}, {other.shape[-1]}, got {x.shape[-1]}")


def check_head_dims(**named: int) -> None:
    """Raises ValueError for the first head dim that is not served; padded, every other one is."""
    for argument, dim in named.items():
        if not 1 <= dim <= MAX_HEAD_DIM:
            raise ValueError(f"{argument}: expected a head dim from 1 to {MAX_HEAD_DIM}, got {dim}")


def write_back(padded_cache: Tensor, cache: Tensor) -> None:
    """Copies what was appended to a padded copy into the cache it was made of; nothing where it is the cache."""
    if padded_cache is not cache:
        cache.copy_(padded_cache[..., : cache.shape[-1]])

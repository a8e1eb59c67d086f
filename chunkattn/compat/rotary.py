"""Rotary embedding of queries whose positions are not those of the step's keys."""

from __future__ import annotations

import torch
from torch import Tensor


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotates the leading dims of every head; computed in fp32 and rounded once, as `chunkattn.append_kv` does.

    Args:
        x: [T, H, D].
        cos, sin: fp32 [T, rotary_dim / 2], the angles of every token.
        interleaved: pairs are (2i, 2i+1) if true, (i, i + rotary_dim/2) if not.

    Returns:
        [T, H, D], a new tensor of x's dtype.
    """
    half = cos.shape[1]
    head, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    a, b = (head[..., 0::2], head[..., 1::2]) if interleaved else head.split(half, dim=-1)
    turned = (a * cos - b * sin, b * cos + a * sin)
    pairs = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return torch.cat([pairs.to(x.dtype), rest], dim=-1)

"""Float64 attention of one unpaged sequence, written with masks over whole matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """out [Tq, Hq, Dv] and lse [Tq, Hq], float64, of q [Tq, Hq, D] over k [Tk, Hkv, D] and v [Tk, Hkv, Dv]."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(k.shape[0]) - (torch.arange(q.shape[0]) + k.shape[0] - q.shape[0])[:, None]
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * distance.abs()
    seen = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        seen &= distance <= 0
    if window[0] >= 0:
        seen &= distance >= -window[0]
    if window[1] >= 0:
        seen &= distance <= window[1]
    scores = scores.masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(-1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.double()[:, None])
    weights = torch.where(torch.isfinite(lse)[..., None], (scores - lse[..., None]).exp(), 0.0)
    return torch.einsum("hqk,khd->qhd", weights, values), lse.t()

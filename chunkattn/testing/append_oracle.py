"""Oracle of ``append_kv``: token by token, in float64, with rotation and quantisation spelled out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from chunkattn.testing.quantization import dynamic_scale, quantize


class RopeTables(Protocol):
    """What the oracle reads of a rotary embedding: :class:`chunkattn.Rope` fits."""

    @property
    def cos(self) -> Tensor: ...
    @property
    def sin(self) -> Tensor: ...
    @property
    def positions(self) -> Tensor | None: ...
    @property
    def interleaved(self) -> bool: ...


@dataclass(frozen=True)
class Appended:
    """What the pools, their scales and q must hold after the call; copies, nothing is written in place."""

    k_cache: Tensor
    v_cache: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    q: Tensor | None


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Rotates the first ``2 * len(cos)`` lanes of ``x`` [H, D] in float64.

    Args:
        x: heads of one token.
        cos: [rotary_dim / 2] of the token's position.
        sin: likewise.
        interleaved: pair ``i`` is lanes (2i, 2i+1) if true, (i, i + rotary_dim/2) if not.
    """
    half = len(cos)
    out = x.to(torch.float64).clone()
    for i in range(half):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        a, b = out[:, first].clone(), out[:, second].clone()
        c, s = float(cos[i]), float(sin[i])
        out[:, first], out[:, second] = a * c - b * s, b * c + a * s
    return out


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def append_kv_oracle(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    *,
    slot_mapping: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    rope: RopeTables | None = None,
    q: Tensor | None = None,
) -> Appended:
    """What :func:`chunkattn.append_kv` must leave behind, for the same arguments."""
    result = Appended(_copy(k_cache), _copy(v_cache), *(t if t is None else _copy(t) for t in (k_scale, v_scale, q)))
    page_size = k_cache.shape[1]
    starts, lens, table = cu_seqlens_q.tolist(), seq_lens.tolist(), block_table.tolist()
    slots = None if slot_mapping is None else slot_mapping.tolist()
    positions = {}
    for request, kv_len in enumerate(lens):
        begin, end = starts[request], starts[request + 1]
        for row in range(end - begin):
            positions[begin + row] = request, kv_len - (end - begin) + row
    for token in positions if slots is None else range(len(slots)):
        request, position = positions.get(token, (-1, -1))
        if slots is None:
            page, slot = table[request][position // page_size], position % page_size
        elif slots[token] < 0:
            continue  # skipped altogether: neither stored nor rotated, its position is not looked at
        else:
            page, slot = divmod(slots[token], page_size)
        k_row = k[token].cpu().to(torch.float64)
        if rope is not None and token in positions:
            at = position if rope.positions is None else int(rope.positions[token])
            cos, sin = rope.cos[at].cpu(), rope.sin[at].cpu()
            k_row = rotate(k_row, cos, sin, interleaved=rope.interleaved)
            if q is not None:
                assert result.q is not None
                rotated = rotate(q[token].cpu(), cos, sin, interleaved=rope.interleaved)
                result.q[token] = rotated.to(q.dtype)
        _store(result.k_cache, result.k_scale, page, slot, k_row)
        _store(result.v_cache, result.v_scale, page, slot, v[token].cpu())
    return result


def _store(cache: Tensor, scale: Tensor | None, page: int, slot: int, row: Tensor) -> None:
    """Writes a row [Hkv, D] into its slot; a scale per token and head is computed and written, others are read."""
    if scale is None:
        cache[page, slot] = quantize(row, 1.0, cache.dtype)
        return
    if scale.dim() == 3:
        scale[page, slot] = dynamic_scale(row, cache.dtype)
        factor = scale[page, slot][:, None]
    else:
        factor = scale if scale.dim() == 0 else scale[:, None]
    cache[page, slot] = quantize(row, factor, cache.dtype)

"""What `flash_attn_with_kvcache` does before it attends: rotary embedding, and new keys into the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

import chunkattn
from chunkattn.compat.contiguous_kv import PagedView
from chunkattn.compat.head_dim import padded
from chunkattn.compat.refusals import foreign_names
from chunkattn.compat.rotary import rotated
from chunkattn.types import Rope


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding and where each sequence's new tokens begin.

    Attributes:
        cos, sin: [positions, rotary_dim / 2].
        first: int [B], the position of a sequence's first new token.
        interleaved: pairs are (2i, 2i+1) if true, (i, i + rotary_dim/2) if not.
    """

    cos: Tensor
    sin: Tensor
    first: Tensor
    interleaved: bool

    def rope_of(self, cu_seqlens: Tensor, *, advance: bool = True) -> Rope:
        """A table of just the tokens' own angles, in fp32: row t is token t.

        Args:
            cu_seqlens: int [B+1], the sequences' tokens.
            advance: each token one position on; else all of a sequence's at its first.

        Raises:
            ValueError: a position past the tables.
        """
        counts = torch.diff(cu_seqlens).long()
        at = torch.repeat_interleave(self.first.long(), counts)
        rows = torch.arange(at.shape[0], device=at.device)
        if advance:
            at = at + rows - torch.repeat_interleave(cu_seqlens[:-1].long(), counts)
        if at.numel() and int(at.max()) >= self.cos.shape[0]:
            raise ValueError(f"rotary_cos: expected at least {int(at.max()) + 1} positions, got {self.cos.shape[0]}")
        return Rope(self.cos[at].float(), self.sin[at].float(), rows, self.interleaved)

    def turned(self, x: Tensor, cu_seqlens: Tensor, *, advance: bool) -> Tensor:
        """[T, H, D] rotated, a new tensor."""
        rope = self.rope_of(cu_seqlens, advance=advance)
        return rotated(x, rope.cos, rope.sin, self.interleaved)


def rotary_of(cos: Tensor | None, sin: Tensor | None, first: Tensor, interleaved: bool) -> Rotary | None:
    """The rotary embedding of two tables, None without.

    Raises:
        ValueError: one table without the other.
    """
    if cos is None or sin is None:
        for name, table in (("rotary_cos", cos), ("rotary_sin", sin)):
            if table is not None:
                raise ValueError(f"{name}: expected None without its other half, got a tensor")
        return None
    return Rotary(cos, sin, first, interleaved)


def ends_of(k: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """int32 [B+1], prefix sums of the new tokens: k is [B, Sn, Hkv, D], or packed with `cu_seqlens`."""
    if cu_seqlens is None:
        return torch.arange(k.shape[0] + 1, dtype=torch.int32, device=k.device) * k.shape[1]
    return cu_seqlens.to(torch.int32)


def append(
    k: Tensor,
    v: Tensor,
    view: PagedView,
    cu_seqlens: Tensor | None,
    after: Tensor,
    scales: tuple[Tensor | None, Tensor | None],
    rotary: Rotary | None,
    names: Mapping[str, str | None],
) -> None:
    """Writes new keys, rotated, and values.

    Args:
        k, v: [B, Sn, Hkv, D], or packed [Tn, Hkv, D] with `cu_seqlens`.
        view: the cache.
        cu_seqlens: int [B+1].
        after: int32 [B], lengths with them.
        scales: of a quantised cache.
        rotary: of the keys.
        names: an operator's argument -> whom an error blames.
    """
    ends = ends_of(k, cu_seqlens)
    if cu_seqlens is None:
        k, v = k.flatten(0, 1), v.flatten(0, 1)
    rope = None if rotary is None else rotary.rope_of(ends)
    own = {"cu_seqlens_q": "k" if cu_seqlens is None else "cu_seqlens_k_new", "rope.cos": "rotary_cos"}
    with foreign_names(**names, **own, k_scale="k_descale", v_scale="v_descale"):
        chunkattn.append_kv(padded(k), padded(v), *view, ends, after, k_scale=scales[0], v_scale=scales[1], rope=rope)

"""Rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding that `append_kv` applies while it writes.

    Attributes:
        cos, sin: fp32 [positions, rotary_dim / 2].
        positions: int64 [T], the position of every token; None derives seq_len - q_len + row.
        interleaved: True pairs lanes (2i, 2i+1) as GPT-J and GGUF Llama files do, False pairs
            (i, i + rotary_dim/2) as GPT-NeoX and Hugging Face do.

    Source: Su et al., "RoFormer", arXiv:2104.09864, eq. 34.
    """

    cos: Tensor
    sin: Tensor
    positions: Tensor | None = None
    interleaved: bool = False

"""The tensors of one call, and other batches cut from the same pool."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chunkattn.testing.case import AttentionCase
from chunkattn.testing.oracle import attention_oracle


@dataclass(frozen=True)
class AttentionInputs:
    """Tensors of one call, named and shaped like the arguments of :func:`chunkattn.attention`."""

    case: AttentionCase
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    alibi_slopes: Tensor | None = None
    sinks: Tensor | None = None
    tree_mask: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    def batch(self) -> tuple[Tensor, ...]:
        """The positional arguments: q, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens."""
        return self.q, self.k_cache, self.v_cache, self.block_table, self.cu_seqlens_q, self.seq_lens

    def semantics(self) -> dict[str, Any]:
        """The keyword arguments that decide what is computed."""
        return {
            "softmax_scale": self.case.softmax_scale,
            "causal": self.case.causal,
            "window": self.case.window,
            "softcap": self.case.softcap,
            "alibi_slopes": self.alibi_slopes,
            "sinks": self.sinks,
            "tree_mask": self.tree_mask,
            "k_scale": self.k_scale,
            "v_scale": self.v_scale,
        }

    def options(self) -> dict[str, Any]:
        """All keyword arguments of the case: its semantics, invariant mode and the number of splits."""
        return {**self.semantics(), "invariant": self.case.invariant, "num_splits": self.case.num_splits}

    def expected(self) -> tuple[Tensor, Tensor]:
        """The oracle's (out, lse) in float64."""
        return attention_oracle(*self.batch(), **self.semantics())

    def empty_state(self, fill: float = math.nan) -> tuple[Tensor, Tensor]:
        """An (out, lse) pair to be written, holding ``fill``."""
        shape = (self.q.shape[0], self.q.shape[1], self.v_cache.shape[3])
        out = torch.full(shape, fill, dtype=self.q.dtype, device=self.q.device)
        return out, torch.full(shape[:2], fill, dtype=torch.float32, device=self.q.device)

    def recut(self, pieces: list[tuple[int, int, int]], padding: int = 0) -> AttentionInputs:
        """Another batch over the same pool, made of pieces of this one's requests.

        Args:
            pieces: (request, first row, end row) each; a piece is a request of the new batch whose history is
                everything before it. The same request may appear many times.
            padding: token rows after the last piece; they hold NaN.

        Returns:
            Inputs whose rows are, piece by piece, the same tokens over the same keys. Tree masks cannot be cut.
        """
        if self.tree_mask is not None:
            raise ValueError("pieces: expected a case without tree mask, because its bits are relative to the chunk")
        starts, kv_lens = self.cu_seqlens_q.tolist(), self.seq_lens.tolist()
        rows = [torch.arange(starts[r] + first, starts[r] + end) for r, first, end in pieces]
        q = self.q[torch.cat(rows)] if rows else self.q[:0]
        q = torch.cat([q, q.new_full((padding, *q.shape[1:]), math.nan)])
        lengths = [end - first for _, first, end in pieces]
        seq_lens = [kv_lens[r] - (starts[r + 1] - starts[r]) + end for r, _, end in pieces]
        requests = torch.tensor([r for r, _, _ in pieces], dtype=torch.int64)
        slopes = self.alibi_slopes
        if slopes is not None and slopes.dim() == 2:
            slopes = slopes[requests]
        case = self.case.but(
            name=f"{self.case.name}/recut", q_lens=tuple(lengths), kv_lens=tuple(seq_lens), padding=padding
        )
        return dataclasses.replace(
            self,
            case=case,
            q=q,
            block_table=self.block_table[requests],
            cu_seqlens_q=prefix_sums(lengths, self.q.device),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=self.q.device),
            alibi_slopes=slopes,
        )


def prefix_sums(lengths: tuple[int, ...] | list[int], device: torch.device | str) -> Tensor:
    """int32 [B+1] of the lengths of B requests."""
    total = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
    return total.to(torch.int32).to(device)

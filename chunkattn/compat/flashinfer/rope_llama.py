"""FlashInfer's positional encoding "ROPE_LLAMA": queries and cached keys rotated at every read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chunkattn.compat.rotary import rotated
from chunkattn.types import Batch


@dataclass(frozen=True)
class RopeLlama:
    """One rotary embedding over the whole head, pairs (i, i + D/2).

    Attributes:
        scale: positions are divided by it.
        theta: base of the frequencies.
    """

    scale: float
    theta: float

    def apply(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Batch]:
        """A step with rotated queries over rotated copies of its keys.

        Keys in the pool stay as they are, so that every call copies what the step reads: rotating once, while keys are
        appended, costs nothing of the kind.

        Args:
            q: [T, Hq, D].
            k_cache, v_cache: [N, P, Hkv, D] pools.
            batch: the step.

        Returns:
            q, and pools of pages of one token in q's dtype with the batch that reads them.
        """
        lengths = batch.seq_lens.long()
        begin = lengths.cumsum(0) - lengths
        request = torch.repeat_interleave(torch.arange(len(lengths), device=q.device), lengths)
        position = torch.arange(request.shape[0], device=q.device) - begin[request]
        page_size = k_cache.shape[1]
        page = batch.block_table.long()[request, position // page_size]
        k, v = (cache[page, position % page_size].to(q.dtype) for cache in (k_cache, v_cache))
        counts = torch.diff(batch.cu_seqlens_q).long()
        first = torch.repeat_interleave(lengths - counts - batch.cu_seqlens_q[:-1], counts)
        q_position = torch.arange(first.shape[0], device=q.device) + first
        longest = int(lengths.max()) if len(lengths) else 0
        table = begin[:, None] + torch.arange(longest, device=q.device)
        copies = Batch(batch.cu_seqlens_q, batch.seq_lens, table.to(torch.int32))
        return self._turn(q, q_position), self._turn(k, position).unsqueeze(1), v.unsqueeze(1), copies

    def _turn(self, x: Tensor, position: Tensor) -> Tensor:
        half = torch.arange(0, x.shape[-1], 2, dtype=torch.float64, device=x.device) / x.shape[-1]
        angles = torch.outer(position.double() / self.scale, self.theta**-half)
        return rotated(x, angles.cos().float(), angles.sin().float(), interleaved=False)

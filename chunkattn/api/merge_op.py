"""`merge_states`: allocation."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn import ops, validate


def merge_states(
    out_a: Tensor,
    lse_a: Tensor,
    out_b: Tensor,
    lse_b: Tensor,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Combines attention over two disjoint key sets: split KV, shared prefixes, context parallelism.

    out = (e^lse_a·out_a + e^lse_b·out_b) / (e^lse_a + e^lse_b). A state with lse -inf is neutral, even where its
    out is NaN; two of them give out 0, lse -inf. An lse of +inf is kept: it stands for an overflowed state and
    gives NaN in out.

    Args:
        out_a, out_b: [T, H, Dv] bf16, fp16 or fp32.
        lse_a, lse_b: fp32 [T, H], natural log.
        out, lse: where to write, None allocates. `out` may be out_a or out_b itself and `lse` lse_a or lse_b (merged
            in place, element upon element); a view that overlaps one of them otherwise is refused.

    Returns:
        (out, lse).

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, §3.1.

    Example:
        >>> import torch, chunkattn
        >>> one, zero = torch.ones(1, 1, 8), torch.zeros(1, 1, 8)
        >>> eight, two = torch.full((1, 1), 8.0), torch.full((1, 1), 2.0)
        >>> out, lse = chunkattn.merge_states(one, eight.log(), zero, two.log())
        >>> round(out[0, 0, 0].item(), 6), round(lse.exp().item(), 4)
        (0.8, 10.0)
    """
    validate.tensors(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    out = torch.empty_like(out_a, memory_format=torch.contiguous_format) if out is None else out
    lse = torch.empty_like(lse_a, memory_format=torch.contiguous_format) if lse is None else lse
    validate.tensors(out=out, lse=lse)
    validate.backend_name(backend)
    try:
        ops.merge_states(out_a, lse_a, out_b, lse_b, out, lse, backend)
    except RuntimeError:
        validate.dense(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b, out=out, lse=lse)
        raise
    return out, lse

"""ALiBi for queries that see keys on both sides: FlashAttention's bias is -slope·|distance|, the operators' is signed.

Keys up to a query's own position are one call. Those after it are a second one over mirrored sequences, in which they
come before it, one position away from where they belong, so that a query doesn't meet its own key twice; the shift adds
one slope to every score of a row, which its log-sum-exp gives back. The two sets of keys are disjoint and merged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import chunkattn
from chunkattn.compat.contiguous_kv import PagedView, packed_segments
from chunkattn.errors import UnsupportedError


def two_sided_attention(
    q: Tensor,
    view: PagedView,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    *,
    window: tuple[int, int],
    alibi_slopes: Tensor,
    sinks: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attention that is not causal, with ALiBi; copies the keys that have a query to their left.

    Args:
        q, cu_seqlens_q, seq_lens, alibi_slopes, sinks: as in `chunkattn.attention`; view holds its pool and page table.
        window: (left, right); right is not 0.
        options: softmax_scale, softcap, k_scale, v_scale, num_splits, as there.

    Returns:
        out [T, Hq, Dv] and lse [T, Hq].

    Raises:
        UnsupportedError: more queries than keys in a sequence.
    """
    check_counts(cu_seqlens_q, seq_lens)
    counts, lengths = torch.diff(cu_seqlens_q).long(), seq_lens.long()
    before = chunkattn.attention(
        q, *view, cu_seqlens_q, seq_lens, causal=True, window=(window[0], -1), alibi_slopes=alibi_slopes, sinks=sinks,
        return_lse=True, **options,
    )  # fmt: skip
    mirror = _mirrored(cu_seqlens_q.long(), counts)
    later = (counts - 1).clamp(min=0)  # keys that some query has on its right
    k, v = (_last_keys(cache, view.block_table, lengths, later) for cache in view[:2])
    ends = torch.nn.functional.pad(later.cumsum(0), (1, 0)).to(torch.int32)
    after = chunkattn.attention(
        q[mirror],
        *packed_segments(k, v, ends, max(int(later.max()), 1)),
        cu_seqlens_q,
        later.to(torch.int32),
        causal=True,
        window=(window[1] - 1 if window[1] > 0 else -1, -1),
        alibi_slopes=alibi_slopes,
        return_lse=True,
        **options,
    )
    shift = torch.repeat_interleave(alibi_slopes.expand(len(counts), -1), counts, dim=0)
    return chunkattn.merge_states(*before, after[0][mirror], after[1][mirror] - shift)  # type: ignore[misc]


def check_counts(cu_seqlens_q: Tensor, seq_lens: Tensor) -> None:
    """Raises UnsupportedError for a sequence with more queries than keys."""
    if bool((torch.diff(cu_seqlens_q) > seq_lens).any()):
        raise UnsupportedError("alibi_slopes: expected causal=True, or no sequence with more queries than keys")


def _mirrored(starts: Tensor, counts: Tensor) -> Tensor:
    """int64 [T], the rows of each sequence in reverse; its own inverse."""
    first_plus_last = torch.repeat_interleave(starts[:-1] + starts[1:] - 1, counts)
    return first_plus_last - torch.arange(first_plus_last.shape[0], device=starts.device)


def _last_keys(cache: Tensor, block_table: Tensor, lengths: Tensor, counts: Tensor) -> Tensor:
    """The last keys of each sequence, the very last first."""
    request = torch.repeat_interleave(torch.arange(len(counts), device=cache.device), counts)
    row = torch.arange(request.shape[0], device=cache.device) - (counts.cumsum(0) - counts)[request]
    position = lengths[request] - 1 - row
    page_size = cache.shape[1]
    return cache[block_table.long()[request, position // page_size], position % page_size]

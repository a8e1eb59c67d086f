"""Keys and values that are not paged, seen as a paged pool.

A pool's strides are free, so that contiguous tensors are pools already and nothing is copied: a dense cache [Bc, S,
Hkv, D] is a pool of Bc pages of S tokens, packed segments [Tk, Hkv, D] are Tk pages of one token. Pages of one token
cost the CPU kernels 0 to 17 % (512 queries at 4,096 keys: 3 %).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PagedView(NamedTuple):
    """A pool and the page table of its requests.

    Attributes:
        k_cache, v_cache: [N, P, Hkv, D] and [N, P, Hkv, Dv], views.
        block_table: int32 [B, M].
    """

    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor


def packed_segments(k: Tensor, v: Tensor, cu_seqlens_k: Tensor, max_seqlen_k: int) -> PagedView:
    """Segments one after another.

    Args:
        k, v: [Tk, Hkv, D] and [Tk, Hkv, Dv].
        cu_seqlens_k: int32 [B+1], where each segment begins.
        max_seqlen_k: the longest segment; decides the columns of the table.

    Raises:
        ValueError: on the CPU, a longer segment.
    """
    if k.device.type == "cpu" and bool((torch.diff(cu_seqlens_k) > max_seqlen_k).any()):
        longest = int(torch.diff(cu_seqlens_k).max())
        raise ValueError(f"max_seqlen_k: expected at least {longest}, the longest sequence, got {max_seqlen_k}")
    segments = cu_seqlens_k.shape[0] - 1
    if max_seqlen_k > 0 and segments * max_seqlen_k == k.shape[0]:  # all of the same length: a page each
        table = torch.arange(segments, dtype=torch.int32, device=k.device)[:, None]
        # unflatten leaves the strides of the other dims as they are
        return PagedView(k.unflatten(0, (segments, max_seqlen_k)), v.unflatten(0, (segments, max_seqlen_k)), table)
    columns = torch.arange(max_seqlen_k, dtype=torch.int32, device=k.device)
    return PagedView(k.unsqueeze(1), v.unsqueeze(1), cu_seqlens_k[:-1, None] + columns)


def cache_view(
    k_cache: Tensor, v_cache: Tensor, batch_size: int, block_table: Tensor | None, batch_idx: Tensor | None
) -> PagedView:
    """A cache, dense or paged.

    Args:
        k_cache, v_cache: [Bc, S, Hkv, D] and [Bc, S, Hkv, Dv], a row a request; with a table pools [N, P, Hkv, D].
        batch_size: requests B.
        block_table: int [B or more, M].
        batch_idx: int [B], the row of the dense cache, or of the table, of each request; None is its own number.
    """
    if block_table is not None:
        chosen = block_table if batch_idx is None else block_table[batch_idx.long()]
        return PagedView(k_cache, v_cache, chosen.to(torch.int32))
    rows = torch.arange(batch_size, device=k_cache.device) if batch_idx is None else batch_idx
    return PagedView(k_cache, v_cache, rows.to(torch.int32)[:, None])


def beginning_at(view: PagedView, first: Tensor) -> PagedView:
    """Requests whose keys begin at a slot of their own, over pages of one slot.

    Args:
        view: pages of P slots.
        first: int [B], the slot at which each request's keys begin.

    Raises:
        ValueError: pages that do not lie at a constant distance from each other; on the CPU, a negative slot.
    """
    if first.device.type == "cpu" and bool((first < 0).any()):
        raise ValueError(f"cache_leftpad: expected slots >= 0, got {int(first.min())}")
    page_size, columns = view.k_cache.shape[1], view.block_table.shape[1]
    pools = []
    for name, cache in (("k_cache", view.k_cache), ("v_cache", view.v_cache)):
        if cache.shape[0] > 1 and cache.stride(0) != page_size * cache.stride(1):
            raise ValueError(
                f"{name}: expected rows one after another (stride {page_size * cache.stride(1)}) with cache_leftpad, "
                f"got stride {cache.stride(0)}"
            )
        pools.append(cache.flatten(0, 1).unsqueeze(1))
    slot = first.long()[:, None] + torch.arange(page_size * columns, device=first.device)
    page = view.block_table.long().gather(1, (slot // page_size).clamp(max=columns - 1))
    return PagedView(pools[0], pools[1], (page * page_size + slot % page_size).to(torch.int32))


def check_contents(
    view: PagedView, cu_seqlens_q: Tensor, seq_lens: Tensor, *, num_tokens: int, window_left: int
) -> None:
    """Checks what index tensors hold as the CPU's attention does: prefix sums, and the pages that queries see.

    Raises:
        ValueError: sums that do not rise from 0 to at most `num_tokens`, a length beyond the table, a page outside the
            pool.
    """
    ends = cu_seqlens_q.tolist()
    if ends[0] != 0 or ends[-1] > num_tokens or ends != sorted(ends):
        raise ValueError(f"cu_seqlens_q: expected prefix sums from 0 to at most {num_tokens} (T of q), got {ends}")
    num_pages, page_size = view.k_cache.shape[:2]
    table = view.block_table
    capacity = table.shape[1] * page_size
    if table.numel():
        low, high = torch.aminmax(table)
        if int(low) >= 0 and int(high) < num_pages and int(seq_lens.max()) <= capacity:
            return  # whatever is seen
    counts = torch.diff(cu_seqlens_q)
    if bool(((seq_lens > capacity) & (counts > 0)).any()):
        raise ValueError(f"seq_lens: expected at most {capacity} (M·P of block_table), got {int(seq_lens.max())}")
    first = (seq_lens - counts - window_left).clamp(min=0) if window_left >= 0 else torch.zeros_like(seq_lens)
    column = torch.arange(table.shape[1], device=seq_lens.device)
    seen = (column >= (first // page_size)[:, None]) & (column * page_size < seq_lens[:, None]) & (counts > 0)[:, None]
    wrong = seen & ((table < 0) | (table >= num_pages))
    if bool(wrong.any()):
        request, at = (int(i) for i in wrong.nonzero()[0])
        raise ValueError(
            f"block_table: expected a page id from 0 to {num_pages - 1}, got {int(table[request, at])} for "
            f"request {request}, column {at}"
        )

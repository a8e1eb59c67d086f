"""Appending to a paged pool at explicit positions."""

from __future__ import annotations

import torch
from torch import Tensor

import chunkattn
from chunkattn.compat.flashinfer.pools import PagedKVCache, check_layout, unpack


def append_paged_kv_cache(
    append_key: Tensor,
    append_value: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    paged_kv_cache: PagedKVCache,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor,
    kv_layout: str = "NHD",
) -> None:
    """Writes keys and values into the pages of their requests.

    Args:
        append_key, append_value: [nnz, Hkv, D].
        batch_indices: int32 [nnz], the request of each token; negative = skip.
        positions: int32 [nnz], its position.
        paged_kv_cache: see `chunkattn.compat.flashinfer.pools.unpack`; written.
        kv_indices, kv_indptr: the CSR page table.
        kv_last_page_len: int32 [B]; positions past a request's length are written as well, as in FlashInfer.
        kv_layout: "NHD" or "HND".

    Raises:
        ValueError: tensors that don't fit each other, or (on the CPU) a page outside the pool.
    """
    if kv_last_page_len.shape[0] != kv_indptr.shape[0] - 1:
        raise ValueError(
            f"kv_last_page_len: expected [{kv_indptr.shape[0] - 1}], got shape {list(kv_last_page_len.shape)}"
        )
    k_cache, v_cache = unpack(paged_kv_cache, check_layout(kv_layout))
    page_size, tokens, device = k_cache.shape[1], append_key.shape[0], append_key.device
    request, position = batch_indices.long(), positions.long()
    page = kv_indices.long()[kv_indptr.long()[request.clamp(min=0)] + position // page_size]
    slots = torch.where(request < 0, -1, page * page_size + position % page_size)
    # Slots replace what the page table would say; a table of one request stands in for it.
    none = torch.zeros(1, -(-tokens // page_size), dtype=torch.int32, device=device)
    ends = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    chunkattn.append_kv(append_key, append_value, k_cache, v_cache, none, ends, ends[1:], slot_mapping=slots)


def get_seq_lens(kv_indptr: Tensor, kv_last_page_len: Tensor, page_size: int) -> Tensor:
    """int32 [B], the requests' lengths in tokens; 0 for one without a page."""
    pages = torch.diff(kv_indptr)
    return torch.where(pages > 0, (pages - 1) * page_size + kv_last_page_len, 0).to(torch.int32)


def get_batch_indices_positions(
    append_indptr: Tensor,
    seq_lens: Tensor,
    nnz: int,
    batch_indices: Tensor | None = None,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Request and position of every appended token; the last token of a request is at its length - 1.

    Args:
        append_indptr: int32 [B+1], prefix sums of the appended tokens.
        seq_lens: int32 [B], lengths with them.
        nnz: rows of the result; those past ``append_indptr[B]`` get request -1.
        batch_indices, positions: int32 [nnz] to write into.
    """
    token = torch.arange(nnz, device=append_indptr.device)
    request = torch.searchsorted(append_indptr[1:].long().contiguous(), token, right=True)
    real = request < seq_lens.shape[0]
    safe = torch.where(real, request, 0)
    position = seq_lens.long()[safe] - append_indptr.long()[safe + 1] + token
    results = torch.where(real, request, -1).to(torch.int32), torch.where(real, position, 0).to(torch.int32)
    given = batch_indices, positions
    return tuple(new if old is None else old.copy_(new) for old, new in zip(given, results))  # type: ignore[return-value]

"""The ragged batch of one step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chunkattn.types.counts import check_counts, check_list
from chunkattn.types.devices import check_device


@dataclass(frozen=True)
class Batch:
    """The ragged batch of one step, as tensors.

    Attributes:
        cu_seqlens_q: int32 [B+1], prefix sums of the query lengths.
        seq_lens: int32 [B], KV lengths including this step's tokens.
        block_table: int32 [B, M], page of each logical page; columns past a request's last page may hold anything.
    """

    cu_seqlens_q: Tensor
    seq_lens: Tensor
    block_table: Tensor

    @classmethod
    def from_lists(
        cls,
        q_lens: Sequence[int],
        kv_lens: Sequence[int],
        pages: Sequence[Sequence[int]],
        *,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Builds the tensors from Python lists, one entry a request.

        Raises:
            TypeError: no list, an entry that is not an integer, a device that is none.
            ValueError: lists of different lengths, a number or a sum of query lengths that is negative or beyond int32,
                a device that is not there.

        Example:
            >>> Batch.from_lists([3, 1], [3, 9], [[7], [2, 5]]).cu_seqlens_q.tolist()
            [0, 3, 4]
        """
        for arg, entries in (("q_lens", q_lens), ("kv_lens", kv_lens), ("pages", pages)):
            check_list(arg, entries)
            if len(entries) != len(q_lens):
                raise ValueError(f"{arg}: expected {len(q_lens)} entries, one a request of q_lens, got {len(entries)}")
        for row in pages:
            check_list("pages", row, "a list of page ids for every request")
        for arg, numbers in (("q_lens", q_lens), ("kv_lens", kv_lens), *(("pages", row) for row in pages)):
            check_counts(arg, numbers)
        check_device(device)
        starts = [0, *itertools.accumulate(int(q_len) for q_len in q_lens)]
        if starts[-1] >= 1 << 31:
            raise ValueError(f"q_lens: expected at most {(1 << 31) - 1} tokens together, got {starts[-1]}")
        columns = max((len(row) for row in pages), default=0)
        table = [list(row) + [0] * (columns - len(row)) for row in pages]
        return cls(
            torch.tensor(starts, dtype=torch.int32, device=device),
            torch.tensor(list(kv_lens), dtype=torch.int32, device=device),
            torch.tensor(table, dtype=torch.int32, device=device).reshape(len(pages), columns),
        )

    @classmethod
    def from_csr(
        cls,
        cu_seqlens_q: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_last_page_len: Tensor,
        *,
        page_size: int,
        max_pages: int | None = None,
    ) -> Batch:
        """Converts the CSR form of a page table, on the device and with no host sync.

        Args:
            cu_seqlens_q: int32 [B+1].
            kv_indptr: int32 [B+1], prefix sums of the requests' page counts.
            kv_indices: int32 [pages in use], page ids.
            kv_last_page_len: int32 [B], tokens in each request's last page, 1…page_size (anything for a request
                with no page).
            max_pages: columns M of the block table; by default all of `kv_indices`, which is always enough.

        Raises:
            TypeError: no tensor, or not of int32; a page size or a column count that is no integer.
            ValueError: shapes that do not belong together, a page size below 1.
        """
        check_counts("page_size", (page_size,), least=1)
        if max_pages is not None:
            check_counts("max_pages", (max_pages,))
        for name, tensor in (
            ("cu_seqlens_q", cu_seqlens_q),
            ("kv_indptr", kv_indptr),
            ("kv_indices", kv_indices),
            ("kv_last_page_len", kv_last_page_len),
        ):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name}: expected a tensor, got {type(tensor).__name__}")
            if tensor.dtype != torch.int32:
                raise TypeError(f"{name}: expected torch.int32, got {tensor.dtype}")
            if tensor.dim() != 1:
                raise ValueError(f"{name}: expected one dimension, got {list(tensor.shape)}")
        if kv_indptr.shape[0] != kv_last_page_len.shape[0] + 1:
            raise ValueError(
                f"kv_indptr: expected {kv_last_page_len.shape[0] + 1} entries (B + 1), got {kv_indptr.shape[0]}"
            )
        if cu_seqlens_q.shape[0] != kv_indptr.shape[0]:
            raise ValueError(
                f"cu_seqlens_q: expected {kv_indptr.shape[0]} entries (B + 1), got {cu_seqlens_q.shape[0]}"
            )
        columns = kv_indices.shape[0] if max_pages is None else max_pages
        counts = kv_indptr[1:] - kv_indptr[:-1]
        column = torch.arange(columns, device=kv_indptr.device)
        where = kv_indptr[:-1, None].long() + column
        in_use = column < counts[:, None]
        last = max(kv_indices.shape[0] - 1, 0)
        table = torch.zeros_like(where, dtype=torch.int32)
        if kv_indices.shape[0]:
            table = torch.where(in_use, kv_indices[where.clamp(max=last)].to(torch.int32), table)
        full_pages = (counts - 1).clamp(min=0) * page_size
        lens = torch.where(counts > 0, full_pages + kv_last_page_len, torch.zeros_like(counts))
        return cls(cu_seqlens_q, lens.to(torch.int32), table)

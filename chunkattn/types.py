"""The nouns of the library, and the shape glossary.

Shape letters, the same everywhere:

====== ==========================================================================
T      query tokens of one step, all requests one after another
B      requests of the step (some may bring no token)
Hq Hkv query heads, KV heads; Hq is a multiple of Hkv
D Dv   head dim of Q and K, head dim of V; multiples of 8 up to 256
N P    pages in the pool, tokens per page
M      columns of the block table
S      KV splits
====== ==========================================================================

Facts of a problem are frozen dataclasses, facts of a step are tensors, decisions are frozen dataclasses.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

KV_DTYPES_QUANTISED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


class AttentionSpec(NamedTuple):
    """The facts of an attention problem that decide which backend can serve it; nothing that changes from step to
    step.

    A named tuple and not a dataclass because one is built and hashed on every call (0.5 µs instead of 4).
    """

    device: str
    dtype: torch.dtype
    kv_dtype: torch.dtype
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    page_size: int
    causal: bool = True
    window: bool = False
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    tree_mask: bool = False
    kv_scale: str = "none"  # none | tensor | head | token
    invariant: bool = False
    op: str = "attention"  # attention | plan | append_kv | merge_states | pages


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


@dataclass(frozen=True)
class PagedKV:
    """One layer's paged KV cache.

    Attributes:
        k_cache: [N, P, Hkv, D]; any strides with the last dim contiguous.
        v_cache: [N, P, Hkv, Dv].
        k_scale, v_scale: fp32 [] or [Hkv] or [N, P, Hkv] for quantised caches, else None.
    """

    k_cache: Tensor
    v_cache: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    @classmethod
    def allocate(
        cls,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        head_dim_v: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
        layout: str = "NHD",
    ) -> PagedKV:
        """An empty (not zeroed) pool.

        Args:
            layout: "NHD" stores [N, P, Hkv, D], "HND" stores [N, Hkv, P, D]; the views handed out are [N, P, Hkv,
                D] in both.

        Raises:
            ValueError: an unknown layout.

        Example:
            >>> kv = PagedKV.allocate(64, 16, 8, 128)
            >>> tuple(kv.k_cache.shape)
            (64, 16, 8, 128)
        """

        def pool(dim: int) -> Tensor:
            if layout == "NHD":
                return torch.empty(num_pages, page_size, num_kv_heads, dim, dtype=dtype, device=device)
            return torch.empty(num_pages, num_kv_heads, page_size, dim, dtype=dtype, device=device).transpose(1, 2)

        if layout not in ("NHD", "HND"):
            raise ValueError(f"layout: expected 'NHD' or 'HND', got {layout!r}")
        return cls(pool(head_dim), pool(head_dim if head_dim_v is None else head_dim_v))

    @classmethod
    def from_fused(cls, pool: Tensor, layout: str = "NHD") -> PagedKV:
        """Views of one pool that holds K and V side by side.

        Args:
            pool: [N, 2, P, Hkv, D] ("NHD") or [N, 2, Hkv, P, D] ("HND").
        """
        if pool.dim() != 5 or pool.shape[1] != 2:
            raise ValueError(f"pool: expected [N, 2, P, Hkv, D] or [N, 2, Hkv, P, D], got {list(pool.shape)}")
        if layout not in ("NHD", "HND"):
            raise ValueError(f"layout: expected 'NHD' or 'HND', got {layout!r}")
        k, v = pool.unbind(1)
        return cls(k, v) if layout == "NHD" else cls(k.transpose(1, 2), v.transpose(1, 2))


def _check_counts(arg: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        try:
            whole = operator.index(number)
        except TypeError:
            raise TypeError(f"{arg}: expected integers, got {number!r}") from None
        if not 0 <= whole < 1 << 31:
            raise ValueError(f"{arg}: expected numbers from 0 to {(1 << 31) - 1}, got {whole}")


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
            TypeError: an entry is not an integer.
            ValueError: lists of different lengths, or a number that is negative or beyond int32.

        Example:
            >>> Batch.from_lists([3, 1], [3, 9], [[7], [2, 5]]).cu_seqlens_q.tolist()
            [0, 3, 4]
        """
        for arg, entries in (("kv_lens", kv_lens), ("pages", pages)):
            if len(entries) != len(q_lens):
                raise ValueError(f"{arg}: expected {len(q_lens)} entries, one a request of q_lens, got {len(entries)}")
        for arg, numbers in (("q_lens", q_lens), ("kv_lens", kv_lens), *(("pages", row) for row in pages)):
            _check_counts(arg, numbers)
        starts = [0]
        for q_len in q_lens:
            starts.append(starts[-1] + q_len)
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
        """
        for name, tensor in (
            ("kv_indptr", kv_indptr),
            ("kv_indices", kv_indices),
            ("kv_last_page_len", kv_last_page_len),
        ):
            if tensor.dim() != 1:
                raise ValueError(f"{name}: expected one dimension, got {list(tensor.shape)}")
        if kv_indptr.shape[0] != kv_last_page_len.shape[0] + 1:
            raise ValueError(
                f"kv_indptr: expected {kv_last_page_len.shape[0] + 1} entries (B + 1), got {kv_indptr.shape[0]}"
            )
        if page_size < 1:
            raise ValueError(f"page_size: expected at least 1, got {page_size}")
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


@dataclass(frozen=True)
class Plan:
    """How a step is cut into work items; made by `plan`, reused by every layer of the step.

    Attributes:
        words: int64 [words], the plan itself, on the device of the lengths.
        backend: the backend that made it and can run it.
        num_q_heads, num_kv_heads: head counts it was made for.
        workspace_bytes: a workspace of this many bytes suffices for this plan.
    """

    words: Tensor
    backend: str
    num_q_heads: int
    num_kv_heads: int
    workspace_bytes: int

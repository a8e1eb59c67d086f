"""What the planning wrappers share: CSR tables, and options that say how to attend, as the operators take them."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn.compat.flashinfer.alibi import alibi_slopes
from chunkattn.compat.flashinfer.rope_llama import RopeLlama
from chunkattn.compat.refusals import foreign_names, refuse
from chunkattn.types import Batch


def csr_batch(
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    last_page_len: Tensor,
    page_size: int,
    seq_lens: Tensor | None,
    block_tables: Tensor | None,
    names: dict[str, str | None],
) -> Batch:
    """The step's tensors on the device of the page list; reads the longest table off `kv_indptr`, a host sync."""
    device = kv_indices.device
    starts = kv_indptr.to(device, torch.int32)
    longest = int(torch.diff(starts).max()) if starts.shape[0] > 1 else 0
    with foreign_names(**names):
        batch = Batch.from_csr(
            qo_indptr.to(device, torch.int32),
            starts,
            kv_indices,
            last_page_len.to(device, torch.int32),
            page_size=page_size,
            max_pages=longest,
        )
    return Batch(
        batch.cu_seqlens_q,
        batch.seq_lens if seq_lens is None else seq_lens.flatten().to(device, torch.int32),
        batch.block_table if block_tables is None else block_tables.to(device, torch.int32),
    )


def names_of(
    queries: str, starts: str, pages: str, lengths: str, seq_lens: Tensor | None = None, tables: Tensor | None = None
) -> dict[str, str | None]:
    """Whom errors about a batch blame: the CSR tables by their names, or what stands in their place."""
    return {
        "cu_seqlens_q": queries,
        "kv_indptr": starts,
        "kv_indices": pages,
        "kv_last_page_len": lengths,
        "block_table": pages if tables is None else "block_tables",
        "seq_lens": lengths if seq_lens is None else None,
    }


def positions(
    name: str, mode: str, num_heads: int, softcap: float | None, rope_scale: float | None, rope_theta: float | None
) -> tuple[Tensor | None, RopeLlama | None]:
    """(ALiBi slopes, rotary embedding) of a positional encoding's name."""
    if mode == "NONE":
        return None, None
    if mode == "ROPE_LLAMA":
        return None, RopeLlama(rope_scale or 1.0, rope_theta or 1e4)
    if mode != "ALIBI":
        raise ValueError(f"pos_encoding_mode: expected 'NONE', 'ROPE_LLAMA' or 'ALIBI', got {mode!r}")
    if softcap:
        raise refuse(name, "logits_soft_cap", "expected none with ALiBi, whose bias FlashInfer adds before the cap")
    return alibi_slopes(num_heads), None


def split_rule(fixed_split_size: int | None, disable_split_kv: bool) -> tuple[bool, int | None]:
    """(invariant, num_splits) of FlashInfer's two ways to make rows independent of the batch."""
    fixed = fixed_split_size is not None and fixed_split_size > 0
    if fixed and disable_split_kv:
        raise ValueError("disable_split_kv: expected False with fixed_split_size, got True")
    return fixed, 1 if disable_split_kv else None

"""What the GPU adapters share: the facts a host-planned kernel wants, and the cases none of them is asked for."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch
from torch import Tensor

from chunkattn.bench.case import BenchCase
from chunkattn.testing import AttentionInputs


@dataclass(frozen=True)
class HostFacts:
    """Lengths as Python numbers, and the page table in CSR form.

    Attributes:
        max_q, max_kv: longest query and KV length.
        scale: of the scores.
        window: (left, right) with 0 to the right for causal.
        kv_indptr: int32 [B+1] page counts summed up.
        kv_indices: int32 pages of all requests.
        last_page_len: int32 [B] tokens in each last page.
        cu_kv: int32 [B+1] KV lengths summed up.
    """

    max_q: int
    max_kv: int
    scale: float
    window: tuple[int, int]
    kv_indptr: Tensor
    kv_indices: Tensor
    last_page_len: Tensor
    cu_kv: Tensor


def host_facts(inputs: AttentionInputs) -> HostFacts:
    """Reads the lengths back once, as engines do when they build a step."""
    case, device = inputs.case, inputs.q.device
    counts = [case.pages_of(request) for request in range(len(case.kv_lens))]
    rows = [inputs.block_table[request, :count] for request, count in enumerate(counts)]
    last = [kv - (count - 1) * case.page_size for kv, count in zip(case.kv_lens, counts, strict=True)]

    def sums(values: tuple[int, ...] | list[int]) -> Tensor:
        return torch.tensor([0, *values]).cumsum(0).to(device=device, dtype=torch.int32)

    return HostFacts(
        max_q=max(case.q_lens, default=0),
        max_kv=max(case.kv_lens, default=0),
        scale=case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale,
        window=(case.window[0], 0),
        kv_indptr=sums(counts),
        kv_indices=torch.cat(rows) if rows else inputs.block_table.new_empty(0),
        last_page_len=torch.tensor(last, dtype=torch.int32, device=device),
        cu_kv=sums(case.kv_lens),
    )


def refuses(case: BenchCase, *, page_multiple: int = 1, sinks: bool = False) -> str | None:
    """Why a paged fp16/bf16 kernel cannot do a case, or None.

    Args:
        case: the case.
        page_multiple: page sizes it takes.
        sinks: whether the adapter passes sinks on.
    """
    if case.dtype == "fp32":
        return "no fp32"
    if case.kv_dtype != case.dtype:
        return "this adapter does no quantised cache"
    if case.layout != "nhd":
        return "listed with nhd"
    if case.page_size % page_multiple:
        return f"pages must be multiples of {page_multiple} tokens"
    return "this adapter passes no sinks" if case.heads.sinks and not sinks else None


def missing(module: str) -> str | None:
    """Why a CUDA package cannot run here, or None."""
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        return f"the package {module.split('.')[0]} is not installed"
    return None if torch.cuda.is_available() else "no CUDA device"

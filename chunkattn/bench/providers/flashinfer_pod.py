"""FlashInfer's batched POD-Attention: chunks and decodes in one launch that shares every multiprocessor.

Written from FlashInfer's interface; it has not run yet, for want of a GPU. The wrapper wants both kinds of requests and
returns their rows apart; putting them into one output, a copy of T rows, is inside the timed call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers import paged_gpu
from chunkattn.bench.providers.base import Call
from chunkattn.bench.providers.groups import Rows, chunks_and_decodes
from chunkattn.testing import AttentionInputs

LABEL = "FlashInfer POD"
INSTALL = "pip install flashinfer-python"
DEVICES = ("cuda",)

_WORKSPACE_BYTES = 256 << 20


def missing() -> str | None:
    return paged_gpu.missing("flashinfer")


def refuses(case: BenchCase) -> str | None:
    if case.heads.softcap:
        return "no soft-cap"
    if case.heads.head_dim != case.heads.head_dim_v:
        return "one head dim"
    if not any(q == 1 for q in case.q_lens) or not any(q > 1 for q in case.q_lens):
        return "wants chunks and decodes both"
    return paged_gpu.refuses(case)


def prepare(inputs: AttentionInputs) -> Call:
    import flashinfer

    case = inputs.case
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.q.device)
    wrapper = flashinfer.BatchPODWithPagedKVCacheWrapper(workspace, "NHD")
    parts = chunks_and_decodes(inputs)
    wrapper.plan(
        *(argument for rows in parts for argument in _tables(inputs, rows)),
        num_qo_heads=case.num_q_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        page_size=case.page_size,
        window_left=case.window[0],
        q_data_type=inputs.q.dtype,
        kv_data_type=inputs.k_cache.dtype,
        sm_scale=case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale,
    )
    pools = (inputs.k_cache, inputs.v_cache)
    chunks, decodes = (_on(rows, inputs.q.device) for rows in parts)
    out = torch.empty_like(inputs.q)

    def run() -> Tensor:
        results: Any = wrapper.run(chunks.of(inputs.q), pools, decodes.of(inputs.q), pools, causal_p=True)
        for rows, result in zip((chunks, decodes), results, strict=True):
            rows.of(out).copy_(result) if rows.span else out.index_copy_(0, rows.index, result)
        return out

    return run


def _tables(inputs: AttentionInputs, rows: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(query starts, page starts, pages, tokens in each last page) of some requests, int32."""
    case, device = inputs.case, inputs.q.device
    counts = [case.pages_of(r) for r in rows.requests]
    last = [case.kv_lens[r] - (n - 1) * case.page_size for r, n in zip(rows.requests, counts, strict=True)]

    def starts(lengths: list[int]) -> Tensor:
        return torch.tensor([0, *lengths]).cumsum(0).to(device=device, dtype=torch.int32)

    pages = torch.cat([inputs.block_table[r, :n] for r, n in zip(rows.requests, counts, strict=True)])
    q_starts = starts([case.q_lens[r] for r in rows.requests])
    return q_starts, starts(counts), pages, torch.tensor(last, dtype=torch.int32, device=device)


def _on(rows: Rows, device: torch.device) -> Rows:
    return Rows(rows.requests, rows.span, rows.index.to(device))

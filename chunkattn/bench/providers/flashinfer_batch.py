"""FlashInfer's persistent BatchAttention: one launch for chunks and decodes, planned once."""

from __future__ import annotations

import torch

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers import paged_gpu
from chunkattn.bench.providers.base import Call
from chunkattn.testing import AttentionInputs

LABEL = "FlashInfer persistent"
INSTALL = "pip install flashinfer-python"
DEVICES = ("cuda",)


def missing() -> str | None:
    return paged_gpu.missing("flashinfer")


def refuses(case: BenchCase) -> str | None:
    if case.heads.window != (-1, -1):
        return "no window"
    return paged_gpu.refuses(case)


def prepare(inputs: AttentionInputs) -> Call:
    import flashinfer

    case, facts = inputs.case, paged_gpu.host_facts(inputs)
    wrapper = flashinfer.BatchAttention(kv_layout="NHD", device=str(inputs.q.device))
    wrapper.plan(
        inputs.cu_seqlens_q,
        facts.kv_indptr,
        facts.kv_indices,
        inputs.seq_lens,
        case.num_q_heads,
        case.num_kv_heads,
        case.head_dim,
        case.value_dim,
        case.page_size,
        causal=True,
        sm_scale=facts.scale,
        logits_soft_cap=case.softcap,
        q_data_type=inputs.q.dtype,
        kv_data_type=inputs.k_cache.dtype,
    )

    def run() -> torch.Tensor:
        out: torch.Tensor = wrapper.run(inputs.q, (inputs.k_cache, inputs.v_cache))[0]
        return out

    return run

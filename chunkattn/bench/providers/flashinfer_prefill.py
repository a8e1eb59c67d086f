"""FlashInfer's paged prefill wrapper over the whole mix: planned once, one run a layer."""

from __future__ import annotations

import torch

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers import paged_gpu
from chunkattn.bench.providers.base import Call
from chunkattn.testing import AttentionInputs

LABEL = "FlashInfer prefill"
INSTALL = "pip install flashinfer-python"
DEVICES = ("cuda",)

_WORKSPACE_BYTES = 256 << 20


def missing() -> str | None:
    return paged_gpu.missing("flashinfer")


def refuses(case: BenchCase) -> str | None:
    return paged_gpu.refuses(case)


def prepare(inputs: AttentionInputs) -> Call:
    import flashinfer

    case, facts = inputs.case, paged_gpu.host_facts(inputs)
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.q.device)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        inputs.cu_seqlens_q,
        facts.kv_indptr,
        facts.kv_indices,
        facts.last_page_len,
        case.num_q_heads,
        case.num_kv_heads,
        case.head_dim,
        case.page_size,
        head_dim_vo=case.value_dim,
        causal=True,
        sm_scale=facts.scale,
        window_left=case.window[0],
        logits_soft_cap=case.softcap or None,
        q_data_type=inputs.q.dtype,
        kv_data_type=inputs.k_cache.dtype,
    )
    out = torch.empty(*inputs.q.shape[:2], case.value_dim, dtype=inputs.q.dtype, device=inputs.q.device)

    def run() -> torch.Tensor:
        wrapper.run(inputs.q, (inputs.k_cache, inputs.v_cache), out=out)
        return out

    return run

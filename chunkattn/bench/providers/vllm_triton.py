"""vLLM's Triton unified_attention: one call for the mix."""

from __future__ import annotations

import torch

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers import paged_gpu
from chunkattn.bench.providers.base import Call
from chunkattn.testing import AttentionInputs

LABEL = "vLLM Triton"
INSTALL = "pip install vllm"
DEVICES = ("cuda",)


def missing() -> str | None:
    return paged_gpu.missing("vllm")


def refuses(case: BenchCase) -> str | None:
    return paged_gpu.refuses(case, page_multiple=16, sinks=True)


def prepare(inputs: AttentionInputs) -> Call:
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    case, facts = inputs.case, paged_gpu.host_facts(inputs)
    out = torch.empty(*inputs.q.shape[:2], case.value_dim, dtype=inputs.q.dtype, device=inputs.q.device)

    def run() -> torch.Tensor:
        unified_attention(
            q=inputs.q,
            k=inputs.k_cache,
            v=inputs.v_cache,
            out=out,
            cu_seqlens_q=inputs.cu_seqlens_q,
            max_seqlen_q=facts.max_q,
            seqused_k=inputs.seq_lens,
            max_seqlen_k=facts.max_kv,
            softmax_scale=facts.scale,
            causal=True,
            window_size=facts.window if case.window[0] >= 0 else (-1, -1),
            block_table=inputs.block_table,
            softcap=case.softcap,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            sinks=inputs.sinks,
        )
        return out

    return run

"""FlashAttention 4 (CuTe DSL), the varlen function with a page table: one call."""

from __future__ import annotations

import torch

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers import paged_gpu
from chunkattn.bench.providers.base import Call
from chunkattn.testing import AttentionInputs

LABEL = "FlashAttention 4"
INSTALL = "pip install flash-attn-4"
DEVICES = ("cuda",)


def missing() -> str | None:
    return paged_gpu.missing("flash_attn.cute")


def refuses(case: BenchCase) -> str | None:
    return paged_gpu.refuses(case)


def prepare(inputs: AttentionInputs) -> Call:
    from flash_attn.cute import flash_attn_varlen_func

    facts = paged_gpu.host_facts(inputs)
    left = None if inputs.case.window[0] < 0 else inputs.case.window[0]

    def run() -> torch.Tensor:
        result = flash_attn_varlen_func(
            inputs.q,
            inputs.k_cache,
            inputs.v_cache,
            cu_seqlens_q=inputs.cu_seqlens_q,
            seqused_k=inputs.seq_lens,
            page_table=inputs.block_table,
            softmax_scale=facts.scale,
            causal=True,
            window_size=(left, 0 if left is not None else None),
            softcap=inputs.case.softcap,
        )
        out: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return out

    return run

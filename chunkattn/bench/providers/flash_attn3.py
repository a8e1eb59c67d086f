"""FlashAttention 3 (Hopper), the KV-cache function with ragged queries and a page table: one call."""

from __future__ import annotations

import torch

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers import paged_gpu
from chunkattn.bench.providers.base import Call
from chunkattn.testing import AttentionInputs

LABEL = "FlashAttention 3"
INSTALL = "git clone https://github.com/Dao-AILab/flash-attention && pip install ./flash-attention/hopper"
DEVICES = ("cuda",)


def missing() -> str | None:
    return paged_gpu.missing("flash_attn_interface")


def refuses(case: BenchCase) -> str | None:
    return paged_gpu.refuses(case)


def prepare(inputs: AttentionInputs) -> Call:
    from flash_attn_interface import flash_attn_with_kvcache

    facts = paged_gpu.host_facts(inputs)

    def run() -> torch.Tensor:
        out: torch.Tensor = flash_attn_with_kvcache(
            inputs.q,
            inputs.k_cache,
            inputs.v_cache,
            cache_seqlens=inputs.seq_lens,
            page_table=inputs.block_table,
            cu_seqlens_q=inputs.cu_seqlens_q,
            max_seqlen_q=facts.max_q,
            softmax_scale=facts.scale,
            causal=True,
            window_size=facts.window,
            softcap=inputs.case.softcap,
        )
        return out

    return run

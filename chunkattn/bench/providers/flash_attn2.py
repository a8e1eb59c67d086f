"""FlashAttention 2, the varlen function with a block table: one call, pages of multiples of 256 tokens."""

from __future__ import annotations

import torch

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers import paged_gpu
from chunkattn.bench.providers.base import Call
from chunkattn.testing import AttentionInputs

LABEL = "FlashAttention 2"
INSTALL = "pip install flash-attn --no-build-isolation"
DEVICES = ("cuda",)


def missing() -> str | None:
    return paged_gpu.missing("flash_attn")


def refuses(case: BenchCase) -> str | None:
    return paged_gpu.refuses(case, page_multiple=256)


def prepare(inputs: AttentionInputs) -> Call:
    from flash_attn import flash_attn_varlen_func

    facts = paged_gpu.host_facts(inputs)

    def run() -> torch.Tensor:
        out: torch.Tensor = flash_attn_varlen_func(
            inputs.q,
            inputs.k_cache,
            inputs.v_cache,
            inputs.cu_seqlens_q,
            facts.cu_kv,
            facts.max_q,
            facts.max_kv,
            softmax_scale=facts.scale,
            causal=True,
            window_size=facts.window,
            softcap=inputs.case.softcap,
            block_table=inputs.block_table,
        )
        return out

    return run

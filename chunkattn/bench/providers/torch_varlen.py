"""PyTorch's own varlen_attn with a block table: one call."""

from __future__ import annotations

import torch

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers import paged_gpu
from chunkattn.bench.providers.base import Call
from chunkattn.testing import AttentionInputs

LABEL = "torch varlen_attn"
INSTALL = "pip install 'torch>=2.13'   # with CUDA"
DEVICES = ("cuda",)


def missing() -> str | None:
    return paged_gpu.missing("torch.nn.attention.varlen")


def refuses(case: BenchCase) -> str | None:
    if case.heads.softcap:
        return "no soft-cap"
    return paged_gpu.refuses(case)


def prepare(inputs: AttentionInputs) -> Call:
    from torch.nn.attention.varlen import varlen_attn

    facts = paged_gpu.host_facts(inputs)

    def run() -> torch.Tensor:
        out = varlen_attn(
            inputs.q,
            inputs.k_cache,
            inputs.v_cache,
            inputs.cu_seqlens_q,
            None,
            facts.max_q,
            facts.max_kv,
            scale=facts.scale,
            window_size=facts.window,
            enable_gqa=True,
            seqused_k=inputs.seq_lens,
            block_table=inputs.block_table,
        )
        assert isinstance(out, torch.Tensor)
        return out

    return run

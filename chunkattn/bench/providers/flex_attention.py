"""FlexAttention, compiled, reading the pages in place through a physical block mask.

One compiled call for every chunk and one for all decodes, because a block mask is dense in batch and query length.
"""

from __future__ import annotations

import functools
import math
import shutil
from collections.abc import Callable
from typing import Any

import torch

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers.base import Call
from chunkattn.bench.providers.groups import plain_only, rows_of
from chunkattn.testing import AttentionInputs

LABEL = "FlexAttention"
INSTALL = "apt-get install g++   # torch.compile needs a C++ compiler on the CPU"
DEVICES = ("cpu",)  # block masks are built on the host

_QUERY_BLOCK = 128


def missing() -> str | None:
    if not torch.cuda.is_available() and not (shutil.which("g++") or shutil.which("clang++")):
        return "torch.compile finds no C++ compiler"
    return None


def refuses(case: BenchCase) -> str | None:
    heads = case.heads
    if case.layout != "nhd":
        return "the cache must be one run of tokens a head; listed with nhd"
    return plain_only(heads.window, heads.sinks, heads.softcap, case.kv_dtype != case.dtype)


@functools.cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    # Past the default of 8 shapes dynamo silently runs the unfused eager path, 20 times slower.
    torch._dynamo.config.recompile_limit = 512
    torch._dynamo.config.accumulated_recompile_limit = 4096
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def prepare(inputs: AttentionInputs) -> Call:
    flex, case = _compiled(), inputs.case
    # [1, Hkv, N·P, D], a view
    k, v = (t.flatten(0, 1).transpose(0, 1)[None] for t in (inputs.k_cache, inputs.v_cache))
    scale = case.head_dim**-0.5
    out = torch.empty(*inputs.q.shape[:2], case.value_dim, dtype=inputs.q.dtype, device=inputs.q.device)
    parts = [[request] for request, q_len in enumerate(case.q_lens) if q_len > 1]
    decodes = [request for request, q_len in enumerate(case.q_lens) if q_len == 1]
    parts += [decodes] if decodes else []
    steps = []
    for requests in parts:
        rows = rows_of(inputs, requests)
        steps.append((rows, len(requests), case.q_lens[requests[0]], _block_mask(inputs, requests)))

    def run() -> torch.Tensor:
        for rows, batch, q_len, mask in steps:
            q = rows.of(inputs.q).view(batch, q_len, case.num_q_heads, case.head_dim).transpose(1, 2)
            keys, values = k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1)
            state = flex(q, keys, values, block_mask=mask, scale=scale, enable_gqa=True)
            state = state.transpose(1, 2).flatten(0, 1)
            if rows.span:
                out[rows.span[0] : rows.span[1]] = state
            else:
                out[rows.index] = state
        return out

    return run


def _block_mask(inputs: AttentionInputs, requests: list[int]) -> Any:
    """Physical page blocks that each query block sees, in full or in part."""
    from torch.nn.attention.flex_attention import BlockMask

    case, page_size, num_pages = inputs.case, inputs.case.page_size, inputs.k_cache.shape[0]
    q_len = case.q_lens[requests[0]]
    query_block = _QUERY_BLOCK if q_len > 1 else 1
    blocks = math.ceil(q_len / query_block)
    logical = torch.full((len(requests), num_pages), -1, dtype=torch.int32)
    history = torch.zeros(len(requests), dtype=torch.int32)
    partial_count = torch.zeros(len(requests), 1, blocks, dtype=torch.int32)
    partial = torch.zeros(len(requests), 1, blocks, num_pages, dtype=torch.int32)
    full_count, full = torch.zeros_like(partial_count), torch.zeros_like(partial)
    for row, request in enumerate(requests):
        kv_len = case.kv_lens[request]
        pages = inputs.block_table[request, : math.ceil(kv_len / page_size)]
        history[row] = kv_len - q_len
        logical[row, pages.long()] = torch.arange(len(pages), dtype=torch.int32)
        for block in range(blocks):
            first = kv_len - q_len + block * query_block
            whole, seen = (first + 1) // page_size, math.ceil(min(first + query_block, kv_len) / page_size)
            full_count[row, 0, block] = whole
            full[row, 0, block, :whole] = pages[:whole]
            partial_count[row, 0, block] = seen - whole
            partial[row, 0, block, : seen - whole] = pages[whole:seen]

    def keep(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        page = logical[b, kv // page_size]
        return (page >= 0) & (page * page_size + kv % page_size <= q + history[b])

    return BlockMask.from_kv_blocks(
        partial_count,
        partial,
        full_count,
        full,
        BLOCK_SIZE=(query_block, page_size),
        mask_mod=keep,
        seq_lengths=(q_len, num_pages * page_size),
        compute_q_blocks=False,
    )

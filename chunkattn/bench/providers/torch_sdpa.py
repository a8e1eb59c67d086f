"""torch scaled_dot_product_attention, request by request, on K and V gathered from the pages.

The query heads of a KV head are folded into rows: on the CPU that is up to 8x faster than ``enable_gqa``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers.base import Call
from chunkattn.bench.providers.groups import plain_only
from chunkattn.testing import AttentionInputs

LABEL = "torch SDPA"
INSTALL = ""
DEVICES = ("cpu", "cuda")


def missing() -> str | None:
    return None


def refuses(case: BenchCase) -> str | None:
    heads = case.heads
    return plain_only((-1, -1), heads.sinks, heads.softcap, case.kv_dtype != case.dtype)


def prepare(inputs: AttentionInputs) -> Call:
    case = inputs.case
    num_heads, kv_heads, group = case.num_q_heads, case.num_kv_heads, case.num_q_heads // case.num_kv_heads
    scale = case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale
    out = torch.empty(*inputs.q.shape[:2], case.value_dim, dtype=inputs.q.dtype, device=inputs.q.device)
    starts, lengths = inputs.cu_seqlens_q.tolist(), inputs.seq_lens.tolist()
    steps = []
    for request, kv_len in enumerate(lengths):
        begin, end = starts[request], starts[request + 1]
        if begin == end:
            continue
        first = 0 if case.window[0] < 0 else max(0, kv_len - (end - begin) - case.window[0]) // case.page_size
        pages = inputs.block_table[request, first : math.ceil(kv_len / case.page_size)].long()
        seen = kv_len - first * case.page_size
        steps.append((begin, end, pages, seen, _mask(inputs, end - begin, seen, group)))

    def run() -> torch.Tensor:
        for begin, end, pages, seen, mask in steps:
            k = inputs.k_cache[pages].flatten(0, 1)[:seen].transpose(0, 1)
            v = inputs.v_cache[pages].flatten(0, 1)[:seen].transpose(0, 1)
            rows = inputs.q[begin:end].view(end - begin, kv_heads, group, case.head_dim)
            packed = rows.transpose(0, 1).reshape(kv_heads, (end - begin) * group, case.head_dim)
            state = F.scaled_dot_product_attention(packed[None], k[None], v[None], attn_mask=mask, scale=scale)[0]
            state = state.view(kv_heads, end - begin, group, case.value_dim).transpose(0, 1)
            out[begin:end] = state.reshape(end - begin, num_heads, case.value_dim)
        return out

    return run


_masks: dict[tuple[int, int, int, tuple[int, int], torch.dtype, torch.device], torch.Tensor] = {}


def _mask(inputs: AttentionInputs, q_len: int, seen: int, group: int) -> torch.Tensor | None:
    """Additive mask [q_len * group, seen] of a request, made once a shape; None for a decode that sees everything."""
    left, _ = inputs.case.window
    if q_len == 1 and left < 0:
        return None
    key = (q_len, seen, group, inputs.case.window, inputs.q.dtype, inputs.q.device)
    if key not in _masks:
        if len(_masks) > 16:
            _masks.clear()
        keep = torch.ones(q_len, seen, dtype=torch.bool, device=inputs.q.device).tril(seen - q_len)
        if left >= 0:
            keep = keep.triu(seen - q_len - left)
        additive = torch.zeros(q_len, seen, dtype=inputs.q.dtype, device=inputs.q.device)
        _masks[key] = additive.masked_fill_(~keep, -math.inf).repeat_interleave(group, 0)
    return _masks[key]

"""From the arguments of a call to launches: one of the attention kernel, one that merges splits."""

from __future__ import annotations

import functools
from dataclasses import astuple
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from chunkattn.args import AttentionArgs, granularity, plan_args
from chunkattn.backends.device import Gpu
from chunkattn.backends.triton import arguments as group
from chunkattn.backends.triton.attention import attention_kernel
from chunkattn.backends.triton.config import (
    KernelConfig,
    choose,
    for_scales,
    needs_fine_weights,
    padded,
    widens_in_registers,
    work_spec,
)
from chunkattn.backends.triton.merge_splits import merge_kernel
from chunkattn.planning.work import WorkSpec

_STORAGE = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.int8: "int8"}
_MERGE_WARPS = 16  # one-warp programs of the merge on a multiprocessor
_TENSOR_MEMORY = (100, 103)  # architectures whose accumulators lie in a memory that no called function can have
_WIDEST = 1 << 30  # windows are cut to it, so that positions plus a window stay in 32 bits


class Launch(NamedTuple):
    """One kernel with all it is given."""

    kernel: Any
    grid: tuple[int]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def run(self) -> None:
        self.kernel[self.grid](*self.arguments, **self.options)


def launches(
    a: AttentionArgs, words: Tensor, workspace: Tensor | None, capacity: int, device: Gpu
) -> tuple[Launch, ...]:
    """The launches of a call, in order.

    Args:
        words: the plan.
        workspace: fp32 [capacity * (Dv + 2)], None without partial states.
        capacity: rows of partial states that fit.
        device: the GPU to launch for.
    """
    group_size, page_size = a.q.shape[1] // a.k_cache.shape[2], a.k_cache.shape[1]
    config = choose(a.q.shape[2], a.v_cache.shape[3], a.q.dtype, a.invariant, device, group_size, page_size)
    config = for_scales(config, granularity(a.k_scale, a.v_scale) == "token", device)
    work = work_spec(plan_args(a, words), device)
    spec = _spec(a, config, work, device)
    scalars = group.Numbers(
        float(a.softmax_scale), float(a.softcap), min(a.window_left, _WIDEST), min(a.window_right, _WIDEST)
    )
    batch = group.Batch(a.cu_seqlens_q, a.seq_lens, a.block_table, *a.block_table.stride())
    outputs = group.Rows(a.out, *a.out.stride()[:2])
    logsums = group.Rows(None, 0, 0) if a.lse is None else group.Rows(a.lse, *a.lse.stride())
    extras = _extras(a)
    partials = group.Partials(workspace, capacity)
    expected = _spec_words(work, a.q.device)
    num_requests, num_tokens = a.seq_lens.shape[0], a.q.shape[0]
    rest = logsums, extras, partials, scalars, num_requests
    queues = torch.zeros(1, dtype=torch.int64, device=a.q.device)
    queries = group.Rows(a.q, *a.q.stride()[:2])
    pools = _pool(a.k_cache, a.k_scale), _pool(a.v_cache, a.v_scale)
    # Without fusion a product and a sum are rounded apart wherever they meet: the bits do not depend on the loop.
    fusion = {"enable_fp_fusion": not a.invariant}
    attend = Launch(
        attention_kernel,
        (work.num_workers,),
        (words, expected, queues, batch, queries, *pools, outputs, *rest, num_tokens, spec),
        {"num_warps": config.num_warps, **fusion},
    )
    if workspace is None:
        return (attend,)
    merge = Launch(
        merge_kernel,
        (device.num_sms * _MERGE_WARPS,),
        (words, expected, batch, outputs, *rest, spec),
        {"num_warps": 1, **fusion},
    )
    return attend, merge


@functools.lru_cache(maxsize=256)
def _spec_words(work: WorkSpec, device: torch.device) -> Tensor:
    """The spec as it stands in a plan's header."""
    return torch.tensor([int(value) for value in astuple(work)], dtype=torch.int64, device=device)


def _spec(a: AttentionArgs, config: KernelConfig, work: WorkSpec, device: Gpu) -> group.Spec:
    return _constants(
        work.group,
        work.num_kv_heads,
        a.q.shape[2],
        a.v_cache.shape[3],
        padded(a.q.shape[2]),
        padded(a.v_cache.shape[3]),
        a.k_cache.shape[1],
        _STORAGE.get(a.k_cache.dtype, "same"),
        a.k_cache.dtype in _STORAGE and widens_in_registers(device),
        granularity(a.k_scale),
        granularity(a.v_scale),
        needs_fine_weights(a.v_cache.shape[3], a.q.dtype),
        device.arch == 90,
        a.causal,
        a.window_left >= 0,
        a.window_right >= 0,
        a.softcap > 0.0,
        a.alibi_slopes is not None,
        a.sinks is not None,
        a.tree_mask is not None,
        a.invariant,
        device.arch not in _TENSOR_MEMORY,
        a.plan is not None,
        config.block_m,
        config.block_m_decode,
        config.block_n,
        config.num_stages,
        work.kv_tile,
        work.invariant_split,
        "tf32x3" if a.q.dtype == torch.float32 else "ieee",
    )


@functools.lru_cache(maxsize=1024)
def _constants(*values: Any) -> group.Spec:
    return group.Spec(*(tl.constexpr(value) for value in values))


def _pool(cache: Tensor, scale: Tensor | None) -> group.Pool:
    if cache.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        cache = cache.view(torch.uint8)
    page, slot, head, _ = cache.stride()
    if scale is None or scale.dim() == 0:
        return group.Pool(cache, page, slot, head, group.Scale(scale, 0, 0, 0))
    if scale.dim() == 1:
        return group.Pool(cache, page, slot, head, group.Scale(scale, 0, 0, scale.stride(0)))
    return group.Pool(cache, page, slot, head, group.Scale(scale, *scale.stride()))


def _extras(a: AttentionArgs) -> group.Extras:
    slopes, sinks, tree = a.alibi_slopes, a.sinks, a.tree_mask
    per_request = slopes is not None and slopes.dim() == 2
    return group.Extras(
        slopes,
        slopes.stride(0) if slopes is not None and per_request else 0,
        slopes.stride(-1) if slopes is not None else 0,
        sinks,
        sinks.stride(0) if sinks is not None else 0,
        tree,
        tree.stride(0) if tree is not None else 0,
    )

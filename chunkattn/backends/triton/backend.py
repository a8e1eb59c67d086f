"""The functions every backend offers (`chunkattn.backends.base`), by Triton kernels.

Nothing here reads a tensor on the host, so calls are captured in a CUDA graph as they are. Triton itself is imported by
the first call that needs it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chunkattn.args import AppendArgs, AttentionArgs, MergeArgs, PlanArgs, plan_args
from chunkattn.backends.base import Support
from chunkattn.backends.device import Gpu, gpu
from chunkattn.backends.gpu_settings import mix_class
from chunkattn.backends.triton import config
from chunkattn.backends.triton.settings import kernel_of, planned, settings_space, tuning_key, with_settings
from chunkattn.env import SETTINGS
from chunkattn.planning.work import make_plan, max_partial_rows, plan_words
from chunkattn.types import AttentionSpec

if TYPE_CHECKING:
    from chunkattn.backends.triton.figures import Figures

__all__ = ["kernel_of", "mix_class", "plan_words", "planned", "settings_space", "tuning_key", "with_settings"]

_OLDEST = (3, 6)
_OLDEST_ARCH = 80
_FLOAT_BYTES = 4
_ALIGNMENT = 16
_PARTIAL_ROWS_WORD = 5


@functools.cache
def _triton_missing() -> str | None:
    """Why Triton cannot be used, None if it can."""
    oldest = ".".join(map(str, _OLDEST))
    if importlib.util.find_spec("triton") is None:
        return f"triton is not installed: pip install 'triton>={oldest}'"
    try:
        version = importlib.metadata.version("triton")  # without importing it, which takes a while
    except importlib.metadata.PackageNotFoundError:  # nightly builds go by another name
        version = str(importlib.import_module("triton").__version__)
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        return f"triton >= {oldest} is needed, {version} is installed: pip install 'triton>={oldest}'"
    return None


def supports(spec: AttentionSpec) -> Support:
    missing = _triton_missing()
    if missing is not None:
        return Support((missing,))
    device = gpu(spec.device)
    if device is None:
        return Support((f"tensors are on {spec.device}, which is no NVIDIA GPU",))
    if device.arch < _OLDEST_ARCH:
        return Support((f"compute capability 8.0 is needed, the GPU has {device.arch / 10}",))
    return Support()


def _gpu(device: torch.device | str) -> Gpu:
    found = gpu(device)
    assert found is not None  # supports() was asked before
    return found


def describe(spec: AttentionSpec) -> str:
    device = _gpu(spec.device)
    group = spec.num_q_heads // spec.num_kv_heads
    chosen = config.choose(spec.head_dim, spec.head_dim_v, spec.dtype, spec.invariant, device, group, spec.page_size)
    return (
        f"sm_{device.arch}, tiles of {chosen.block_m_decode} and {chosen.block_m} rows x {chosen.block_n} keys, "
        f"{chosen.num_warps} warps, {chosen.num_stages} stages"
    )


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def workspace_bytes(spec: AttentionSpec, max_tokens: int, max_seq_len: int, num_splits: int) -> int:
    work = config.work_spec_of(
        _gpu(spec.device),
        spec.num_q_heads,
        spec.num_kv_heads,
        spec.head_dim,
        spec.head_dim_v,
        spec.dtype,
        page_size=spec.page_size,
        invariant=spec.invariant,
        num_splits=num_splits,
    )
    return _partial_bytes(max_partial_rows(work, max_tokens, max_seq_len), spec.head_dim_v)


def plan_workspace_bytes(args: PlanArgs, max_tokens: int | None, max_seq_len: int | None) -> int:
    """From the maxima if both are given; else from the plan itself, which waits for the device."""
    if max_tokens is None or max_seq_len is None:
        return _partial_bytes(int(args.words[_PARTIAL_ROWS_WORD]), args.head_dim_v)
    return _partial_bytes(max_partial_rows(config.work_spec(args), max_tokens, max_seq_len), args.head_dim_v)


def _partial_bytes(rows: int, head_dim_v: int) -> int:
    """A partial row is an unnormalised out row, its maximum and its sum."""
    return rows * (head_dim_v + 2) * _FLOAT_BYTES


def plan(a: PlanArgs) -> None:
    from chunkattn.backends.triton.plan import plan as run

    with _on(a.seq_lens.device):
        run(a)


def attention(a: AttentionArgs) -> None:
    from chunkattn.backends.triton import launch

    if a.q.shape[0] == 0:
        return
    num_requests = a.seq_lens.shape[0]
    if num_requests == 0:  # padding only
        a.out.zero_()
        if a.lse is not None:
            a.lse.fill_(-torch.inf)
        return
    if a.plan is not None and a.plan.shape[0] != plan_words(num_requests):
        raise ValueError(
            f"plan: expected {plan_words(num_requests)} words for {num_requests} requests, got {a.plan.shape[0]}"
        )
    facts = plan_args(a, a.seq_lens.new_empty(0) if a.plan is None else a.plan)
    bound = max_partial_rows(config.work_spec(facts), a.q.shape[0], a.block_table.shape[1] * a.k_cache.shape[1])
    row_bytes = _partial_bytes(1, a.v_cache.shape[3])
    capacity, workspace = _workspace(a, bound, row_bytes)
    if SETTINGS.debug and a.plan is not None:
        _check_plan(a, facts, capacity * row_bytes)
    with _on(a.q.device):
        words = a.plan
        if words is None:
            words = torch.empty(plan_words(num_requests), dtype=torch.int64, device=a.q.device)
            plan(facts._replace(words=words))
        for one in launch.launches(a, words, workspace, capacity, _gpu(a.q.device)):
            one.run()


def _check_plan(a: AttentionArgs, facts: PlanArgs, num_bytes: int) -> None:
    """What the kernels find out too, and answer with NaN in every row: in debug mode it is an error that says why."""
    assert a.plan is not None
    made = a.plan.tolist()
    if made != make_plan(config.work_spec(facts), a.cu_seqlens_q.tolist(), a.seq_lens.tolist()):
        raise ValueError("plan: expected one made for these lengths and options, got one made for others")
    needed = _partial_bytes(made[_PARTIAL_ROWS_WORD], a.v_cache.shape[3])
    if needed > num_bytes:
        raise ValueError(f"workspace: expected at least {needed} bytes for this plan, got {num_bytes}")


def _workspace(a: AttentionArgs, bound: int, row_bytes: int) -> tuple[int, Tensor | None]:
    """(rows that fit, fp32 view) of the workspace; a planned call's own plan may need less than the bound."""
    if a.workspace is None:
        if bound == 0:
            return 0, None
        return bound, torch.empty(bound * row_bytes // _FLOAT_BYTES, dtype=torch.float32, device=a.q.device)
    if a.workspace.numel() and a.workspace.data_ptr() % _ALIGNMENT:
        raise ValueError(f"workspace: expected a data pointer aligned to {_ALIGNMENT} bytes, got one that is not")
    capacity = a.workspace.numel() // row_bytes
    if a.plan is None and capacity < bound:
        raise ValueError(f"workspace: expected at least {bound * row_bytes} bytes, got {a.workspace.numel()}")
    capacity = min(capacity, bound)
    if capacity == 0:
        return 0, None
    return capacity, a.workspace[: capacity * row_bytes].view(torch.float32)


def repeat_attention(a: AttentionArgs) -> bool:
    return False


def repeat_append_kv(a: AppendArgs) -> bool:
    return False


def compiled(a: AttentionArgs, device: Gpu) -> Figures:
    """The kernel of a call, compiled for a GPU that need not be there."""
    from chunkattn.backends.triton.figures import compile_attention

    return compile_attention(a, device)


def append_kv(a: AppendArgs) -> None:
    from chunkattn.backends.triton.append_kv import append_kv as run

    with _on(a.k.device):
        run(a)


def merge_states(a: MergeArgs) -> None:
    from chunkattn.backends.triton.merge_states import merge_states as run

    with _on(a.out.device):
        run(a)


def copy_pages(cache: Tensor, source: Tensor, target: Tensor) -> None:
    from chunkattn.backends.triton.pages import copy_pages as run

    with _on(cache.device):
        run(cache, source, target)


def gather_pages(cache: Tensor, pages: Tensor, out: Tensor) -> None:
    from chunkattn.backends.triton.pages import gather_pages as run

    with _on(cache.device):
        run(cache, pages, out)


def scatter_pages(block: Tensor, cache: Tensor, pages: Tensor) -> None:
    from chunkattn.backends.triton.pages import scatter_pages as run

    with _on(cache.device):
        run(block, cache, pages)

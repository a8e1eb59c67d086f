"""The functions every backend offers (`chunkattn.backends.base`), by CUDA kernels.

A call selects a launcher (cached), lets the native core fill its parameters from the tensors and enqueues one kernel on
torch's current stream. No tensor is read on the host, so calls are captured in a CUDA graph as they are.
"""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager
from dataclasses import astuple
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from chunkattn.args import AppendArgs, AttentionArgs, MergeArgs, PlanArgs, attention_spec, plan_args, plan_spec
from chunkattn.backends.base import Support
from chunkattn.backends.cuda import libraries, select, settings
from chunkattn.backends.device import Gpu, gpu
from chunkattn.build.variants import Variant
from chunkattn.env import SETTINGS
from chunkattn.planning import contents
from chunkattn.planning.work import WorkSpec, make_plan, plan_words
from chunkattn.types import AttentionSpec

_ALIGNMENT = 64  # bytes, of a workspace


def _candidates(spec: AttentionSpec) -> tuple[tuple[Variant, ...], str]:
    core = libraries.native()
    if isinstance(core, str):
        return (), core
    device = gpu(spec.device)
    if device is None:
        return (), f"tensors are on {spec.device}, which is no NVIDIA GPU"
    return settings.candidates(spec, device, settings.in_force(spec, device))


def supports(spec: AttentionSpec) -> Support:
    variants, reason = _candidates(spec)
    if not reason:
        found = libraries.available(variants)
        reason = found if isinstance(found, str) else ""
    return Support((reason,)) if reason else Support()


def prepare(spec: AttentionSpec) -> Support:
    """Loads what the problem's op needs, building it if it is not there."""
    variants, reason = _candidates(spec)
    if reason:
        return Support((reason,))
    try:
        libraries.load(variants)
        if spec.op == "plan" or spec.op == "attention":
            libraries.load(select.of_kernel("plan", _gpu(spec.device)))
    except libraries.LibraryError as error:
        return Support((str(error),))
    return Support()


def describe(spec: AttentionSpec) -> str:
    found = libraries.available(_candidates(spec)[0])
    assert not isinstance(found, str)  # supports() was asked before
    return f"{found[0].name} ({found[1]})"


def _gpu(device: torch.device | str) -> Gpu:
    found = gpu(device)
    assert found is not None  # supports() was asked before
    return found


def _core() -> ModuleType:
    core = libraries.native()
    assert isinstance(core, ModuleType)  # supports() was asked before
    return core


@functools.lru_cache(maxsize=256)
def _of_kernel(kernel: str, device: Gpu) -> libraries.Loaded:
    return libraries.load(select.of_kernel(kernel, device))


class _Attention(NamedTuple):
    """What serves an attention problem: the library, what its plans depend on, and that as a tuple of integers."""

    library: libraries.Loaded
    work: WorkSpec
    fields: tuple[int, ...]


def _of_problem(spec: AttentionSpec, window: tuple[int, int], num_splits: int, device: Gpu) -> _Attention:
    return _of_choice(spec, window, num_splits, device, settings.in_force(spec, device))


@functools.lru_cache(maxsize=1024)
def _of_choice(
    spec: AttentionSpec,
    window: tuple[int, int],
    num_splits: int,
    device: Gpu,
    chosen: settings.Settings | None,
) -> _Attention:
    variants, reason = settings.candidates(spec, device, chosen)
    if reason:
        raise libraries.LibraryError(reason)
    library = libraries.load(variants)
    work = settings.work_of(library.variant, device, spec, window, num_splits, chosen)
    return _Attention(library, work, _integers(work))


def _integers(work: WorkSpec) -> tuple[int, ...]:
    return tuple(int(value) for value in astuple(work))


def _stream(device: torch.device) -> int:
    """torch's current stream; 0 on a device that stands in for a GPU."""
    if device.type != "cuda":
        return 0
    index = device.index if device.index is not None else torch.cuda.current_device()
    return int(torch._C._cuda_getCurrentRawStream(index))


_NOTHING = contextlib.nullcontext()


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Launches go to the current device."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return _NOTHING
    return torch.cuda.device(device)


def append_kv(a: AppendArgs) -> None:
    device = a.k.device
    properties = _gpu(device)
    library = _of_kernel("append_kv", properties)
    with _on(device):
        library.require(_core().launch_append_kv(library.launcher, a, _stream(device), properties.num_sms))


def merge_states(a: MergeArgs) -> None:
    device = a.out.device
    properties = _gpu(device)
    library = _of_kernel("merge_states", properties)
    with _on(device):
        library.require(_core().launch_merge_states(library.launcher, a, _stream(device), properties.num_sms))


def _move_pages(source: Tensor, source_ids: Tensor | None, target: Tensor, target_ids: Tensor | None) -> None:
    device = source.device
    properties = _gpu(device)
    library = _of_kernel("pages", properties)
    with _on(device):
        status = _core().launch_pages(
            library.launcher, source, source_ids, target, target_ids, _stream(device), properties.num_sms
        )
        library.require(status)


def copy_pages(cache: Tensor, source: Tensor, target: Tensor) -> None:
    if SETTINGS.debug:
        contents.check_page_ids("source", source, cache.shape[0])
        contents.check_page_targets("target", target, cache.shape[0], source)
    _move_pages(cache, source, cache, target)


def gather_pages(cache: Tensor, pages: Tensor, out: Tensor) -> None:
    if SETTINGS.debug:
        contents.check_page_ids("pages", pages, cache.shape[0])
    _move_pages(cache, pages, out, None)


def scatter_pages(block: Tensor, cache: Tensor, pages: Tensor) -> None:
    if SETTINGS.debug:
        contents.check_page_targets("pages", pages, cache.shape[0])
    _move_pages(block, None, cache, pages)


def _of_plan(a: PlanArgs, device: Gpu) -> _Attention:
    return _of_problem(plan_spec(a), (a.window_left, a.window_right), a.num_splits, device)


def plan(a: PlanArgs) -> None:
    launch_plan(a, _of_plan(a, _gpu(a.seq_lens.device)).fields)


def launch_plan(a: PlanArgs, fields: tuple[int, ...]) -> None:
    """Fills `a.words` with the plan of `a`'s lengths for the fields of a WorkSpec."""
    device = a.seq_lens.device
    properties = _gpu(device)
    library = _of_kernel("plan", properties)
    with _on(device):
        library.require(_core().launch_plan(library.launcher, a, fields, _stream(device), properties.num_sms))


def workspace_bytes(spec: AttentionSpec, max_tokens: int, max_seq_len: int, num_splits: int) -> int:
    chosen = _of_problem(spec, (-1, -1), num_splits, _gpu(spec.device))
    return _workspace_bytes(chosen.fields, max_tokens, max_seq_len, spec.head_dim_v)


@functools.lru_cache(maxsize=1024)
def _workspace_bytes(fields: tuple[int, ...], max_tokens: int, max_seq_len: int, head_dim_v: int) -> int:
    return int(_core().attention_workspace_bytes(fields, max_tokens, max_seq_len, head_dim_v))


def plan_workspace_bytes(args: PlanArgs, max_tokens: int | None, max_seq_len: int | None) -> int:
    """From the maxima; one that is missing is read from the device, which waits for it."""
    chosen = _of_plan(args, _gpu(args.seq_lens.device))
    if max_tokens is None:
        max_tokens = int(args.cu_seqlens_q[-1])
    if max_seq_len is None:
        max_seq_len = int(args.seq_lens.max()) if args.seq_lens.numel() else 0
    return _workspace_bytes(chosen.fields, max_tokens, max_seq_len, args.head_dim_v)


def attention(a: AttentionArgs) -> None:
    num_tokens = a.q.shape[0]
    if num_tokens == 0:
        return
    device = a.q.device
    properties = _gpu(device)
    spec = attention_spec(a)
    chosen = _of_problem(spec, (a.window_left, a.window_right), a.num_splits, properties)
    num_requests = a.seq_lens.shape[0]
    longest = a.block_table.shape[1] * a.k_cache.shape[1]
    size = _workspace_bytes(chosen.fields, num_tokens, longest, a.v_cache.shape[3])
    if a.workspace is not None:
        _check_workspace(a.workspace, size, num_tokens, longest)
    if a.plan is not None and a.plan.shape[0] != plan_words(num_requests):
        raise ValueError(
            f"plan: expected {plan_words(num_requests)} words for {num_requests} requests, got {a.plan.shape[0]}"
        )
    if SETTINGS.debug and a.plan is not None:
        _check_plan(a.plan, a, chosen.work)
    with _on(device):
        if a.plan is None:
            words = torch.empty(plan_words(num_requests), dtype=torch.int64, device=device)
            launch_plan(plan_args(a, words), chosen.fields)
            a = a._replace(plan=words)
        if a.workspace is None:
            a = a._replace(workspace=torch.empty(size, dtype=torch.uint8, device=device))
        library = chosen.library
        status = _core().launch_attention(library.launcher, a, chosen.fields, _stream(device), properties.num_sms)
        library.require(status)


def _check_plan(plan: Tensor, a: AttentionArgs, work: WorkSpec) -> None:
    """The kernel stops the device at a plan for other options, and does not see other lengths: in debug mode both are
    an error that says why."""
    if plan.tolist() != make_plan(work, a.cu_seqlens_q.tolist(), a.seq_lens.tolist()):
        raise ValueError("plan: expected one made for these lengths and options, got one made for others")


def _check_workspace(workspace: Tensor, size: int, max_tokens: int, max_seq_len: int) -> None:
    if workspace.shape[0] < size:
        raise ValueError(
            f"workspace: expected at least {size} bytes, as planned with max_tokens={max_tokens} and "
            f"max_seq_len={max_seq_len} (T of q, M·P of block_table), got {workspace.shape[0]}"
        )
    if workspace.data_ptr() % _ALIGNMENT:
        raise ValueError(f"workspace: expected a data pointer aligned to {_ALIGNMENT} bytes, got one that is not")


def repeat_attention(a: AttentionArgs) -> bool:
    return False


def repeat_append_kv(a: AppendArgs) -> bool:
    return False

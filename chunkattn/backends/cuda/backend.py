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

import torch
from torch import Tensor

from chunkattn.args import AppendArgs, AttentionArgs, MergeArgs, PlanArgs
from chunkattn.backends.base import Support
from chunkattn.backends.cuda import libraries, select, work_spec
from chunkattn.backends.device import Gpu, gpu
from chunkattn.build.variants import Variant
from chunkattn.env import SETTINGS
from chunkattn.plan import contents
from chunkattn.plan.work import WorkSpec, plan_words
from chunkattn.types import AttentionSpec

_PARTIAL_ROWS_WORD, _NUM_TOKENS_WORD = 5, 2


def _candidates(spec: AttentionSpec) -> tuple[tuple[Variant, ...], str]:
    core = libraries.native()
    if isinstance(core, str):
        return (), core
    device = gpu(spec.device)
    if device is None:
        return (), f"tensors are on {spec.device}, which is no NVIDIA GPU"
    return select.candidates(spec, device)


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


@functools.lru_cache(maxsize=1024)
def _of_problem(spec: AttentionSpec, device: Gpu) -> libraries.Loaded:
    variants, reason = select.candidates(spec, device)
    if reason:
        raise libraries.LibraryError(reason)
    return libraries.load(variants)


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


def _attention_of_plan(a: PlanArgs, device: Gpu) -> libraries.Loaded:
    spec = AttentionSpec(
        a.seq_lens.device.type,
        a.dtype,
        a.dtype,
        a.num_q_heads,
        a.num_kv_heads,
        a.head_dim,
        a.head_dim_v,
        a.page_size,
        a.causal,
        a.window_left >= 0 or a.window_right >= 0,
        invariant=a.invariant,
        op="plan",
    )
    return _of_problem(spec, device)


def plan(a: PlanArgs) -> None:
    properties = _gpu(a.seq_lens.device)
    launch_plan(a, work_spec.of_plan(_attention_of_plan(a, properties).variant, properties, a))


def launch_plan(a: PlanArgs, spec: WorkSpec) -> None:
    """Fills `a.words` with the plan of `a`'s lengths for a spec."""
    device = a.seq_lens.device
    properties = _gpu(device)
    library = _of_kernel("plan", properties)
    with _on(device):
        words = tuple(int(value) for value in astuple(spec))
        library.require(_core().launch_plan(library.launcher, a, words, _stream(device), properties.num_sms))


def workspace_bytes(spec: AttentionSpec, max_tokens: int, max_seq_len: int, num_splits: int) -> int:
    properties = _gpu(spec.device)
    work = work_spec.of_problem(_of_problem(spec, properties).variant, properties, spec, num_splits)
    return _workspace_bytes(work, max_tokens, max_seq_len, spec.head_dim_v)


def _workspace_bytes(spec: WorkSpec, max_tokens: int, max_seq_len: int, head_dim_v: int, rows: int = -1) -> int:
    words = tuple(int(value) for value in astuple(spec))
    return int(_core().attention_workspace_bytes(words, max_tokens, max_seq_len, head_dim_v, rows))


def plan_workspace_bytes(args: PlanArgs, max_tokens: int | None, max_seq_len: int | None) -> int:
    """From the maxima if both are given; else from the plan itself, which waits for the device."""
    properties = _gpu(args.seq_lens.device)
    spec = work_spec.of_plan(_attention_of_plan(args, properties).variant, properties, args)
    if max_tokens is not None and max_seq_len is not None:
        return _workspace_bytes(spec, max_tokens, max_seq_len, args.head_dim_v)
    header = args.words[: _PARTIAL_ROWS_WORD + 1].tolist()
    longest = int(args.seq_lens.max()) if args.seq_lens.numel() else 0
    return _workspace_bytes(spec, header[_NUM_TOKENS_WORD], longest, args.head_dim_v, rows=header[_PARTIAL_ROWS_WORD])


def attention(a: AttentionArgs) -> None:
    if a.q.shape[0] == 0:
        return
    device = a.q.device
    properties = _gpu(device)
    library = _of_problem(_problem(a), properties)
    spec = work_spec.of_attention(library.variant, properties, a)
    with _on(device):
        if a.plan is None:
            words = torch.empty(plan_words(a.seq_lens.shape[0]), dtype=torch.int64, device=device)
            launch_plan(_plan_args(a, words), spec)
            a = a._replace(plan=words)
        if a.workspace is None:
            longest = a.block_table.shape[1] * a.k_cache.shape[1]
            size = _workspace_bytes(spec, a.q.shape[0], longest, a.v_cache.shape[3])
            a = a._replace(workspace=torch.empty(size, dtype=torch.uint8, device=device))
        fields = tuple(int(value) for value in astuple(spec))
        library.require(_core().launch_attention(library.launcher, a, fields, _stream(device), properties.num_sms))


def _problem(a: AttentionArgs) -> AttentionSpec:
    """The facts that decided in `supports` which variant serves the call."""
    return AttentionSpec(
        a.q.device.type,
        a.q.dtype,
        a.k_cache.dtype,
        a.q.shape[1],
        a.k_cache.shape[2],
        a.q.shape[2],
        a.v_cache.shape[3],
        a.k_cache.shape[1],
        a.causal,
        a.window_left >= 0 or a.window_right >= 0,
        a.softcap > 0.0,
        a.alibi_slopes is not None,
        a.sinks is not None,
        a.tree_mask is not None,
        "none" if a.k_scale is None and a.v_scale is None else "some",
        a.invariant,
    )


def _plan_args(a: AttentionArgs, words: Tensor) -> PlanArgs:
    return PlanArgs(
        a.cu_seqlens_q,
        a.seq_lens,
        words,
        a.q.shape[1],
        a.k_cache.shape[2],
        a.q.shape[2],
        a.v_cache.shape[3],
        a.k_cache.shape[1],
        a.q.dtype,
        a.causal,
        a.window_left,
        a.window_right,
        a.invariant,
        a.num_splits,
        "NHD",
        None,
    )


def repeat_attention(a: AttentionArgs) -> bool:
    return False

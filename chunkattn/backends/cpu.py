"""The C++ kernels of the native core (``csrc/cpu``), for CPU tensors."""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch import Tensor

from chunkattn.args import AppendArgs, AttentionArgs, MergeArgs, PlanArgs
from chunkattn.backends.base import Support
from chunkattn.env import SETTINGS
from chunkattn.planning.work import plan_words
from chunkattn.types import AttentionSpec

__all__ = ["plan_words"]

_FLOAT_BYTES = 4


@functools.cache
def _native() -> ModuleType | str:
    """The native core, or why there is none. torch must come first: the core shares its OpenMP runtime."""
    try:
        from chunkattn import _native as core
    except ImportError as error:
        return f"the native core is not built ({error}); reinstall where a C++17 compiler is"
    if SETTINGS.isa is not None and SETTINGS.isa not in core.isas():
        return f"CHUNKATTN_ISA={SETTINGS.isa}: this processor has {', '.join(core.isas())}"
    core.select_isa(SETTINGS.isa or "")
    return core


def supports(spec: AttentionSpec) -> Support:
    core = _native()
    if isinstance(core, str):
        return Support((core,))
    if spec.device != "cpu":
        return Support((f"tensors are on {spec.device}",))
    return Support()


def describe(spec: AttentionSpec) -> str:
    core = _core()
    return f"{core.isa()}, {torch.get_num_threads()} threads"


def _core() -> ModuleType:
    core = _native()
    assert isinstance(core, ModuleType)  # supports() was asked before
    return core


def workspace_bytes(spec: AttentionSpec, max_tokens: int, max_seq_len: int, num_splits: int) -> int:
    rows = _core().max_partial_rows(
        max_tokens,
        max_seq_len,
        spec.num_q_heads,
        spec.num_kv_heads,
        spec.head_dim,
        spec.head_dim_v,
        spec.dtype,
        spec.invariant,
        num_splits,
        torch.get_num_threads(),
    )
    return _partial_bytes(rows, spec.head_dim_v)


def plan_workspace_bytes(args: PlanArgs, max_tokens: int | None, max_seq_len: int | None) -> int:
    return _partial_bytes(_core().plan_partial_rows(args.words), args.head_dim_v)


def _partial_bytes(rows: int, head_dim_v: int) -> int:
    """A partial row is an unnormalised out row, its maximum and its sum."""
    return rows * (head_dim_v + 2) * _FLOAT_BYTES


def plan(a: PlanArgs) -> None:
    _core().plan(a, torch.get_num_threads())


def attention(a: AttentionArgs) -> None:
    _core().attention(a, torch.get_num_threads(), True)


def repeat_attention(a: AttentionArgs) -> bool:
    core = _native()
    return not isinstance(core, str) and core.attention(a, torch.get_num_threads(), False)


def append_kv(a: AppendArgs) -> None:
    _core().append_kv(a, torch.get_num_threads(), True)


def repeat_append_kv(a: AppendArgs) -> bool:
    core = _native()
    return not isinstance(core, str) and core.append_kv(a, torch.get_num_threads(), False)


def merge_states(a: MergeArgs) -> None:
    _core().merge_states(a, torch.get_num_threads())


def copy_pages(cache: Tensor, source: Tensor, target: Tensor) -> None:
    _core().copy_pages(cache, source, target, torch.get_num_threads())


def gather_pages(cache: Tensor, pages: Tensor, out: Tensor) -> None:
    _core().gather_pages(cache, pages, out, torch.get_num_threads())


def scatter_pages(block: Tensor, cache: Tensor, pages: Tensor) -> None:
    _core().scatter_pages(block, cache, pages, torch.get_num_threads())

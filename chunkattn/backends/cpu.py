"""The C++ kernels of the native core (``csrc/cpu``), for CPU tensors."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from chunkattn.args import AppendArgs, AttentionArgs, MergeArgs, PlanArgs, plan_spec
from chunkattn.backends.base import Support
from chunkattn.backends.device import processor
from chunkattn.env import SETTINGS
from chunkattn.planning.work import WorkSpec, plan_words, spec_of_plan
from chunkattn.types import AttentionSpec

if TYPE_CHECKING:
    from chunkattn.planning.tuning_table import TuningKey

__all__ = ["plan_words"]

_FLOAT_BYTES = 4
_SPACE = {
    "threads": (0, 1),
    "decode_rows": (8, 4, 16),
    "items_per_worker": (4, 1, 2, 8, 16),
    "min_split": (256, 128, 512, 1024, 4096),
    "tile_kib": (600, 150, 300, 1200, 2400),
    "tile_share": (8, 2, 4, 16),
}


@functools.cache
def _native() -> ModuleType | str:
    """The native core, or why there is none. torch must come first: the core shares its OpenMP runtime."""
    try:
        from chunkattn import _native as core
    except ImportError as error:
        return f"the native core is not built ({error}); a C++17 compiler builds it, in a checkout by pip install -e"
    if not hasattr(core, "install_settings"):
        return "the native core was built from other sources than this package; reinstall it"
    if SETTINGS.isa is not None and SETTINGS.isa not in core.isas():
        return f"CHUNKATTN_ISA={SETTINGS.isa}: this processor has {', '.join(core.isas())}"
    core.select_isa(SETTINGS.isa or "")
    _install_measured(core)
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


def _device(core: ModuleType, threads: int) -> str:
    return f"{processor()}, {core.isa()}, {threads} threads"


def _install_measured(core: ModuleType) -> None:
    """Hands the native core the measured settings of this processor, by number of threads."""
    from chunkattn.planning import measured

    rows = []
    for key, found in measured.in_force().items():
        threads = key.device.removesuffix(" threads").rpartition(" ")[2]
        if key.backend != "cpu" or key.kernel != core.kernel_hash() or not threads.isdecimal():
            continue
        if key.device != _device(core, int(threads)):
            continue
        dtype, _, kv_dtype = key.dtype.partition("/")
        try:
            values = core.check_settings(dict(found.entry.values))
            dtypes = getattr(torch, dtype), getattr(torch, kv_dtype or dtype)
            problem = int(threads), dtypes[0], key.head_dim, key.value_dim, key.group
            row = (*problem, dtypes[1], int(key.page_class), key.mix_class, values)
            core.install_settings([row])  # alone first: one that cannot be must not cost the others
            rows.append(row)
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            warnings.warn(f"a measured setting of the cpu backend is not used: {error}", stacklevel=2)
    core.install_settings(rows)


def tuning_key(spec: AttentionSpec, mix_class: str) -> TuningKey:
    """What measured settings of a problem depend on."""
    import chunkattn
    from chunkattn.planning.tuning_table import TuningKey

    core = _core()
    dtype, kv_dtype = (str(one).removeprefix("torch.") for one in (spec.dtype, spec.kv_dtype))
    return TuningKey(
        "cpu",
        _device(core, torch.get_num_threads()),
        "",
        chunkattn.__version__,
        core.kernel_hash(),
        dtype if dtype == kv_dtype else f"{dtype}/{kv_dtype}",
        spec.head_dim,
        spec.head_dim_v,
        spec.num_q_heads // spec.num_kv_heads,
        str(core.page_class(spec.page_size)),
        mix_class,
    )


def mix_class(spec: AttentionSpec, q_lens: Sequence[int], kv_lens: Sequence[int]) -> str:
    """Which batches behave like this one."""
    starts = torch.tensor([0, *itertools.accumulate(q_lens)], dtype=torch.int32)
    lens = torch.tensor(list(kv_lens), dtype=torch.int32)
    heads = spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.head_dim_v
    found: str = _core().mix_class(starts, lens, *heads, torch.get_num_threads())
    return found


def settings_space(spec: AttentionSpec) -> Iterator[dict[str, int]]:
    """Everything that may be tried, the default first."""
    for values in itertools.product(*_SPACE.values()):
        yield dict(zip(_SPACE, values))


def planned(spec: AttentionSpec, q_lens: Sequence[int], kv_lens: Sequence[int]) -> tuple[WorkSpec, list[int]]:
    """The plan of a batch, and what else it depends on."""
    words = torch.empty(plan_words(len(q_lens)), dtype=torch.int64)
    starts = torch.tensor([0, *itertools.accumulate(q_lens)], dtype=torch.int32)
    lens = torch.tensor(list(kv_lens), dtype=torch.int32)
    heads = spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.head_dim_v
    plan(
        PlanArgs(starts, lens, words, *heads, spec.page_size, spec.dtype, True, -1, -1, spec.invariant, 0, "NHD", None)
    )
    made = words.tolist()
    return spec_of_plan(made), made


@contextlib.contextmanager
def with_settings(values: Mapping[str, int]) -> Iterator[None]:
    """Inside it every call and plan of this process takes these settings."""
    _core().force_settings(dict(values))
    try:
        yield
    finally:
        _core().force_settings(None)


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
    if isinstance(args.words, FakeTensor):  # a plan that holds no numbers
        if max_tokens is None or max_seq_len is None:
            raise ValueError("max_tokens, max_seq_len: expected numbers, since the lengths are fake tensors, got None")
        return workspace_bytes(plan_spec(args), max_tokens, max_seq_len, args.num_splits)
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

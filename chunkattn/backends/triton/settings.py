"""What of the Triton backend may be chosen by measurement: the tile configuration and how work is cut for it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from chunkattn.backends import gpu_settings
from chunkattn.backends.device import Gpu
from chunkattn.backends.gpu_settings import ANY, gpu_of, measured_choice
from chunkattn.backends.triton import config
from chunkattn.backends.triton.config import KernelConfig
from chunkattn.planning.work import WorkSpec, make_plan
from chunkattn.types import AttentionSpec

if TYPE_CHECKING:
    from chunkattn.planning.tuning_table import TuningKey

_KERNEL = ("block_m", "block_n", "num_warps", "num_stages", "ctas_per_sm")
# Files of this folder that attention's speed does not depend on.
OTHERS = ("append_kv", "backend", "figures", "merge_states", "pages", "quantize", "settings", "token_places")
_CUT = {"items_per_worker": (8, 4, 16), "split_cost": (128, 32, 512)}


def to_values(chosen: KernelConfig) -> dict[str, int]:
    """A configuration as it stands in a table."""
    return {name: getattr(chosen, name) for name in (*_KERNEL, *_CUT)}


def from_values(values: Mapping[str, int], head_dim: int, head_dim_v: int, dtype: torch.dtype, of: Gpu) -> KernelConfig:
    """The configuration that a table names.

    Raises:
        ValueError: none that fits the GPU.
    """
    if set(values) != {*_KERNEL, *_CUT}:
        raise ValueError(f"values: expected {', '.join((*_KERNEL, *_CUT))}, got {', '.join(values)}")
    for candidate in config.configs(head_dim, head_dim_v, dtype.itemsize, of):
        if all(getattr(candidate, name) == values[name] for name in _KERNEL):
            cut = {name: values[name] for name in _CUT}
            if not (1 <= cut["items_per_worker"] <= 64 and 1 <= cut["split_cost"] <= 1 << 16):
                break
            return replace(candidate, **cut)
    raise ValueError(f"values: expected a configuration that fits sm_{of.arch}, got {dict(values)}")


def settings_space(spec: AttentionSpec) -> Iterator[dict[str, int]]:
    """The default, every other kernel that fits, and the default kernel with its work cut otherwise."""
    found = list(config.configs(spec.head_dim, spec.head_dim_v, spec.dtype.itemsize, gpu_of(spec)))
    yield from map(to_values, found)
    for values in list(itertools.product(*_CUT.values()))[1:]:
        yield to_values(replace(found[0], **dict(zip(_CUT, values))))


def kernel_of(values: Mapping[str, int]) -> tuple[int, ...]:
    """What is compiled: settings that differ in the rest share a kernel."""
    return tuple(values[name] for name in _KERNEL)


def planned(spec: AttentionSpec, q_lens: Sequence[int], kv_lens: Sequence[int]) -> tuple[WorkSpec, list[int]]:
    """The plan of a batch, and what else it depends on."""
    heads = spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.head_dim_v
    work = config.work_spec_of(gpu_of(spec), *heads, spec.dtype, page_size=spec.page_size, invariant=spec.invariant)
    return work, make_plan(work, [0, *itertools.accumulate(q_lens)], kv_lens)


def tuning_key(spec: AttentionSpec, mix_class: str = ANY) -> TuningKey:
    """What measured settings of a problem depend on; a plan does not know what the cache holds."""
    group = spec.num_q_heads // spec.num_kv_heads
    return key_of(spec.head_dim, spec.head_dim_v, spec.dtype, group, spec.page_size, gpu_of(spec))


def key_of(head_dim: int, head_dim_v: int, dtype: torch.dtype, group: int, page_size: int, device: Gpu) -> TuningKey:
    """`tuning_key`, from single facts."""
    return gpu_settings.key_of("triton", kernel_hash(), device, dtype, head_dim, head_dim_v, group, page_size)


@contextlib.contextmanager
def with_settings(values: Mapping[str, int]) -> Iterator[None]:
    """Inside it every call and plan of this process takes these settings, but for invariant ones."""
    before = config.forced
    cut = {name: values[name] for name in _CUT}
    config.forced = replace(
        KernelConfig(values["block_m"], config.DECODE_ROWS, *(values[name] for name in _KERNEL[1:])), **cut
    )
    try:
        yield
    finally:
        config.forced = before


def measured_config(key: TuningKey, of: Gpu) -> KernelConfig | None:
    """What the tables hold for a key; None where there is nothing, or nothing that fits."""
    dtype = getattr(torch, key.dtype)
    return measured_choice(key, lambda values: from_values(values, key.head_dim, key.value_dim, dtype, of))


@functools.cache
def kernel_hash(folder: Path = Path(__file__).parent) -> str:
    """Of what attention and its plan are made from: the files of this folder, and Triton itself."""
    digest = hashlib.sha256(_triton_version().encode())
    for path in sorted(folder.glob("*.py")):
        if path.stem not in OTHERS:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _triton_version() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"

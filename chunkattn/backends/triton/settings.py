"""What of the Triton backend may be chosen by measurement: the tile configuration and how work is cut for it.

A plan does not know what its lengths are until it is on the device, and a CUDA graph serves every mix with one launch:
so one choice serves all mixes of a problem, which is the class "any". Invariant mode takes the default, since another
tile adds up in another order.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from chunkattn.backends.device import Gpu, gpu
from chunkattn.backends.triton import config
from chunkattn.backends.triton.config import KernelConfig
from chunkattn.planning.work import WorkSpec, make_plan
from chunkattn.types import AttentionSpec

if TYPE_CHECKING:
    from chunkattn.planning.tuning_table import TuningKey

_KERNEL = ("block_m", "block_n", "num_warps", "num_stages", "ctas_per_sm")
_CUT = {"items_per_worker": (8, 4, 16), "split_cost": (128, 32, 512)}
ANY = "any"


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
    found = list(config.configs(spec.head_dim, spec.head_dim_v, spec.dtype.itemsize, _gpu(spec)))
    yield from map(to_values, found)
    for values in list(itertools.product(*_CUT.values()))[1:]:
        yield to_values(replace(found[0], **dict(zip(_CUT, values))))


def kernel_of(values: Mapping[str, int]) -> tuple[int, ...]:
    """What is compiled: settings that differ in the rest share a kernel."""
    return tuple(values[name] for name in _KERNEL)


def mix_class(spec: AttentionSpec, q_lens: Sequence[int], kv_lens: Sequence[int]) -> str:
    return ANY


def planned(spec: AttentionSpec, q_lens: Sequence[int], kv_lens: Sequence[int]) -> tuple[WorkSpec, list[int]]:
    """The plan of a batch, and what else it depends on."""
    heads = spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.head_dim_v
    work = config.work_spec_of(_gpu(spec), *heads, spec.dtype, page_size=spec.page_size, invariant=spec.invariant)
    return work, make_plan(work, [0, *itertools.accumulate(q_lens)], kv_lens)


def tuning_key(spec: AttentionSpec, mix_class: str = ANY) -> TuningKey:
    """What measured settings of a problem depend on; a plan does not know what the cache holds."""
    group = spec.num_q_heads // spec.num_kv_heads
    return key_of(spec.head_dim, spec.head_dim_v, spec.dtype, group, spec.page_size, _gpu(spec))


def key_of(head_dim: int, head_dim_v: int, dtype: torch.dtype, group: int, page_size: int, device: Gpu) -> TuningKey:
    """`tuning_key`, from single facts. Pages behave alike up to the next power of two, and from 256 tokens on."""
    import chunkattn
    from chunkattn.planning.tuning_table import TuningKey

    page_class = min(1 << (page_size.bit_length() - 1), 256)
    name = device.name or f"sm_{device.arch}"
    where = "triton", f"{name}, {device.num_sms} SMs", device.driver, chunkattn.__version__, kernel_hash()
    return TuningKey(*where, str(dtype).removeprefix("torch."), head_dim, head_dim_v, group, str(page_class), ANY)


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
    from chunkattn.planning import measured

    found = measured.in_force().get(key)
    if found is None:
        return None
    try:
        return from_values(found.entry.values, key.head_dim, key.value_dim, getattr(torch, key.dtype), of)
    except ValueError as error:
        warnings.warn(f"a measured setting of the triton backend is not used: {error}", stacklevel=2)
        return None


@functools.cache
def kernel_hash() -> str:
    """Of what the kernels are made from: this folder and Triton itself."""
    digest = hashlib.sha256(_triton_version().encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _triton_version() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _gpu(spec: AttentionSpec) -> Gpu:
    found = gpu(spec.device)
    assert found is not None  # supports() was asked before
    return found

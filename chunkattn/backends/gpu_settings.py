"""What the tuned settings of all GPU backends have in common.

A plan does not know what its lengths are until it is on the device, and a CUDA graph serves every mix with one launch:
so one choice serves all mixes of a problem, which is the class "any". Invariant mode takes the default, since another
tile adds up in another order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

from chunkattn.backends.device import Gpu, gpu
from chunkattn.types import AttentionSpec

if TYPE_CHECKING:
    from chunkattn.planning.tuning_table import TuningKey

ANY = "any"
Choice = TypeVar("Choice")


def mix_class(spec: AttentionSpec, q_lens: Sequence[int], kv_lens: Sequence[int]) -> str:
    return ANY


def gpu_of(spec: AttentionSpec) -> Gpu:
    """The GPU of a problem that the backend supports."""
    found = gpu(spec.device)
    assert found is not None  # supports() was asked before
    return found


def key_of(
    backend: str,
    kernel: str,
    device: Gpu,
    dtype: torch.dtype,
    head_dim: int,
    head_dim_v: int,
    group: int,
    page_size: int,
) -> TuningKey:
    """What measured settings of a problem depend on; a plan does not know what the cache holds.

    Pages behave alike up to the next power of two, and from 256 tokens on.
    """
    import chunkattn
    from chunkattn.planning.tuning_table import TuningKey

    page_class = min(1 << (page_size.bit_length() - 1), 256)
    name = f"{device.name or f'sm_{device.arch}'}, {device.num_sms} SMs"
    where = backend, name, device.driver, chunkattn.__version__, kernel
    return TuningKey(*where, str(dtype).removeprefix("torch."), head_dim, head_dim_v, group, str(page_class), ANY)


def measured_choice(key: TuningKey, read: Callable[[Mapping[str, int]], Choice]) -> Choice | None:
    """What the tables hold for a key; None where there is nothing, or nothing that can be used.

    Args:
        key: of the problem.
        read: makes a choice of an entry's values; ValueError where they fit nothing.
    """
    from chunkattn.planning import measured

    found = measured.in_force().get(key)
    if found is None:
        return None
    try:
        return read(found.entry.values)
    except ValueError as error:
        warnings.warn(f"a measured setting of the {key.backend} backend is not used: {error}", stacklevel=2)
        return None

"""FlashInfer's forms of a paged pool, as [N, P, Hkv, D] views."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn.compat.tensor_arguments import check_tensors

PagedKVCache = Tensor | tuple[Tensor, Tensor]


def check_layout(kv_layout: str) -> str:
    """ "NHD" or "HND".

    Raises:
        ValueError: anything else.
    """
    if kv_layout not in ("NHD", "HND"):
        raise ValueError(f"kv_layout: expected 'NHD' or 'HND', got {kv_layout!r}")
    return kv_layout


def unpack(paged_kv_cache: PagedKVCache, kv_layout: str) -> tuple[Tensor, Tensor]:
    """K and V views [N, P, Hkv, D] of a pool.

    Args:
        paged_kv_cache: [N, 2, P, Hkv, D] (HND: [N, 2, Hkv, P, D]), or a pair of 4-D tensors without the dim of 2.
        kv_layout: "NHD" or "HND".

    Raises:
        TypeError, ValueError: anything else.
    """
    if isinstance(paged_kv_cache, Tensor):
        if paged_kv_cache.dim() != 5 or paged_kv_cache.shape[1] != 2:
            raise ValueError(
                f"paged_kv_cache: expected 5 dimensions, the second of 2, or a pair, got {list(paged_kv_cache.shape)}"
            )
        k_cache, v_cache = paged_kv_cache.unbind(1)
    else:
        if not isinstance(paged_kv_cache, tuple | list):
            raise TypeError(f"paged_kv_cache: expected a tensor or a pair, got {type(paged_kv_cache).__name__}")
        if len(paged_kv_cache) != 2:
            raise ValueError(f"paged_kv_cache: expected a tensor or a pair, got {len(paged_kv_cache)} values")
        for cache in paged_kv_cache:
            check_tensors(paged_kv_cache=(cache, "[N, P, Hkv, D]" if kv_layout == "NHD" else "[N, Hkv, P, D]"))
        k_cache, v_cache = paged_kv_cache
    return (k_cache, v_cache) if kv_layout == "NHD" else (k_cache.transpose(1, 2), v_cache.transpose(1, 2))


def dtype_of(name: str | torch.dtype) -> torch.dtype:
    """A dtype given by itself or by its name, as FlashInfer's plans take it.

    Raises:
        ValueError: no dtype of that name.
    """
    dtype = getattr(torch, name, None) if isinstance(name, str) else name
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"data_type: expected a torch dtype or its name, got {name!r}")
    return dtype

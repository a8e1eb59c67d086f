"""Checks on the paged pools and their scales."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn.types import DTYPES, KV_DTYPES_QUANTISED, MAX_HEAD_DIM
from chunkattn.validate.sentences import bad, bad_dtype, bad_shape
from chunkattn.validate.tensor import FP32, contiguous_last, on_device


def pools(k_cache: Tensor, v_cache: Tensor, arg: str, tensor: Tensor) -> None:
    """Checks K and V caches that serve `tensor`, the query or the new key by name."""
    dtype = tensor.dtype
    if k_cache.dim() != 4:
        bad_shape("k_cache", k_cache, "[N, P, Hkv, D]")
    if v_cache.dim() != 4 or v_cache.shape[:3] != k_cache.shape[:3]:
        bad_shape("v_cache", v_cache, f"[N, P, Hkv, Dv] with the first three of k_cache {list(k_cache.shape[:3])}")
    if k_cache.dtype != dtype and k_cache.dtype not in KV_DTYPES_QUANTISED:
        if k_cache.dtype in DTYPES and k_cache.dtype == v_cache.dtype:  # two against one
            bad_dtype(arg, tensor, f"{k_cache.dtype}, the dtype of k_cache")
        bad_dtype("k_cache", k_cache, f"{dtype}, float8_e4m3fn, float8_e5m2 or int8")
    if v_cache.dtype != k_cache.dtype:
        bad_dtype("v_cache", v_cache, f"{k_cache.dtype}, the dtype of k_cache")
    if k_cache.shape[1] < 1:
        bad_shape("k_cache", k_cache, "a page size of at least 1")
    contiguous_last("k_cache", k_cache)
    contiguous_last("v_cache", v_cache)


def head_dims(head_dim: int, head_dim_v: int) -> None:
    for arg, dim in (("k_cache", head_dim), ("v_cache", head_dim_v)):
        if dim < 8 or dim > MAX_HEAD_DIM or dim % 8:
            bad(arg, f"a head dim that is a multiple of 8 up to {MAX_HEAD_DIM}", dim)


def _scale(arg: str, scale: Tensor, pool: Tensor, device: torch.device) -> str:
    """Checks one scale and returns its granularity."""
    if scale.dtype != FP32:
        bad_dtype(arg, scale, FP32)
    on_device(arg, scale, device)
    if pool.dtype not in KV_DTYPES_QUANTISED:
        bad(arg, f"no scale for a cache of {pool.dtype}", f"shape {list(scale.shape)}")
    if scale.dim() == 0:
        return "tensor"
    if scale.dim() == 1 and scale.shape[0] == pool.shape[2]:
        return "head"
    if scale.dim() == 3 and scale.shape == pool.shape[:3]:
        return "token"
    bad_shape(arg, scale, f"[], [Hkv] = [{pool.shape[2]}] or [N, P, Hkv] = {list(pool.shape[:3])}")


def scales(
    k_scale: Tensor | None, v_scale: Tensor | None, k_cache: Tensor, v_cache: Tensor, device: torch.device
) -> str:
    if k_scale is None and v_scale is None:
        return "none"
    kinds = []
    for arg, scale, pool in (("k_scale", k_scale, k_cache), ("v_scale", v_scale, v_cache)):
        if scale is not None:
            kinds.append(_scale(arg, scale, pool, device))
    return max(kinds, key=("tensor", "head", "token").index)

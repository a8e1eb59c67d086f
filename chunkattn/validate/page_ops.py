"""What `copy_pages`, `gather_pages` and `scatter_pages` accept."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn.types import DTYPES, KV_DTYPES_QUANTISED, AttentionSpec
from chunkattn.validate.sentences import bad_dtype, bad_shape
from chunkattn.validate.tensor import dense, no_gradients, on_device, tensors, written

# What the native core knows: caches, also fp8 ones that another engine holds as bytes, and integers kept beside them.
_POOL_DTYPES = (*DTYPES, *KV_DTYPES_QUANTISED, torch.uint8, torch.int32, torch.int64)


def copy_pages(cache: Tensor, source: Tensor, target: Tensor) -> AttentionSpec:
    """Checks one copy_pages call and returns its facts."""
    spec = pages(cache, source=source, target=target)
    if target.shape[0] != source.shape[0]:
        bad_shape("target", target, f"[{source.shape[0]}], as many as source")
    written(cache=cache)
    no_gradients(cache=cache)
    return spec


def gather_pages(cache: Tensor, ids: Tensor, out: Tensor) -> AttentionSpec:
    """Checks one gather_pages call and returns its facts."""
    spec = pages(cache, pages=ids)
    _block("out", out, cache, ids.shape[0])
    written(out=out)
    no_gradients(cache=cache, out=out)
    return spec


def scatter_pages(block: Tensor, cache: Tensor, ids: Tensor) -> AttentionSpec:
    """Checks one scatter_pages call and returns its facts."""
    spec = pages(cache, pages=ids)
    _block("block", block, cache, ids.shape[0])
    written(cache=cache)
    no_gradients(block=block, cache=cache)
    return spec


def pages(cache: Tensor, **lists: Tensor) -> AttentionSpec:
    """Checks a pool and lists of page ids."""
    tensors(cache=cache, **lists)
    dense(cache=cache, **lists)
    if cache.dim() < 2:
        bad_shape("cache", cache, "[N, …], pages first")
    if cache.dtype not in _POOL_DTYPES:
        bad_dtype("cache", cache, "a dtype that a KV cache can have")
    for arg, ids in lists.items():
        if ids.dtype not in (torch.int32, torch.int64):
            bad_dtype(arg, ids, "torch.int32 or torch.int64")
        if ids.dim() != 1:
            bad_shape(arg, ids, "one dimension of page ids")
        on_device(arg, ids, cache.device)
    return AttentionSpec(cache.device.type, cache.dtype, cache.dtype, 1, 1, 8, 8, 1, op="pages")


def _block(arg: str, block: Tensor, cache: Tensor, count: int) -> None:
    tensors(**{arg: block})
    dense(**{arg: block})
    if block.shape != (count, *cache.shape[1:]):
        bad_shape(arg, block, f"{[count, *cache.shape[1:]]}")
    if block.dtype != cache.dtype:
        bad_dtype(arg, block, f"{cache.dtype}, the dtype of cache")
    on_device(arg, block, cache.device)

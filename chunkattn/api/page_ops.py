"""`copy_pages`, `gather_pages`, `scatter_pages`: allocation."""

from __future__ import annotations

from torch import Tensor

from chunkattn import ops, validate


def copy_pages(cache: Tensor, source: Tensor, target: Tensor, *, backend: str | None = None) -> None:
    """Copies whole pages inside a pool, e.g. copy-on-write of a shared prefix.

    Args:
        cache: [N, …] any strides, of a dtype that a KV cache can have, or uint8, int32 or int64; written.
        source, target: int32 or int64 [n] page ids; no page may be a target twice or both source and target.

    Example:
        >>> import torch, chunkattn
        >>> pool = torch.arange(3.0).reshape(3, 1)
        >>> chunkattn.copy_pages(pool, torch.tensor([2]), torch.tensor([0]))
        >>> pool.flatten().tolist()
        [2.0, 1.0, 2.0]
    """
    validate.tensors(cache=cache, source=source, target=target)
    validate.dense(cache=cache, source=source, target=target)
    validate.backend_name(backend)
    ops.copy_pages(cache, source, target, backend)


def gather_pages(cache: Tensor, pages: Tensor, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """Packs pages of a pool into one dense block, e.g. to swap them out or hand a prompt's KV to another worker.

    Args:
        cache: [N, …] any strides, of a dtype that a KV cache can have, or uint8, int32 or int64.
        pages: int32 or int64 [n]. On GPUs ids outside the pool are checked with CHUNKATTN_DEBUG=1 alone; else their
            rows of the result are left as they were.
        out: [n, …] to write into, outside the pool's memory; None allocates.

    Returns:
        [n, …].

    Example:
        >>> import torch, chunkattn
        >>> chunkattn.gather_pages(torch.arange(3.0).reshape(3, 1), torch.tensor([2, 0])).flatten().tolist()
        [2.0, 0.0]
    """
    validate.tensors(cache=cache, pages=pages)
    validate.pages(cache, pages=pages)
    out = cache.new_empty(pages.shape[0], *cache.shape[1:]) if out is None else out
    validate.tensors(out=out)
    validate.backend_name(backend)
    ops.gather_pages(cache, pages, out, backend)
    return out


def scatter_pages(block: Tensor, cache: Tensor, pages: Tensor, *, backend: str | None = None) -> None:
    """Writes a dense block into pages of a pool, the inverse of `gather_pages`.

    Args:
        block: [n, …], outside the pool's memory.
        cache: [N, …] any strides, of a dtype that a KV cache can have, or uint8, int32 or int64; written.
        pages: int32 or int64 [n], each at most once.

    Example:
        >>> import torch, chunkattn
        >>> pool = torch.zeros(3, 1)
        >>> chunkattn.scatter_pages(torch.ones(1, 1), pool, torch.tensor([1]))
        >>> pool.flatten().tolist()
        [0.0, 1.0, 0.0]
    """
    validate.tensors(block=block, cache=cache, pages=pages)
    validate.dense(block=block, cache=cache, pages=pages)
    validate.backend_name(backend)
    ops.scatter_pages(block, cache, pages, backend)

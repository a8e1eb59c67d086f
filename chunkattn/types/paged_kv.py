"""One layer's paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chunkattn.types.counts import check_counts
from chunkattn.types.devices import check_device
from chunkattn.types.spec import DTYPES, KV_DTYPES_QUANTISED, MAX_HEAD_DIM


@dataclass(frozen=True)
class PagedKV:
    """One layer's paged KV cache.

    Attributes:
        k_cache: [N, P, Hkv, D]; any strides with the last dim contiguous.
        v_cache: [N, P, Hkv, Dv].
        k_scale, v_scale: fp32 [] or [Hkv] or [N, P, Hkv] for quantised caches, else None.
    """

    k_cache: Tensor
    v_cache: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    @classmethod
    def allocate(
        cls,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        head_dim_v: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
        layout: str = "NHD",
    ) -> PagedKV:
        """An empty (not zeroed) pool.

        Args:
            layout: "NHD" stores [N, P, Hkv, D], "HND" stores [N, Hkv, P, D]; the views handed out are [N, P, Hkv,
                D] in both.

        Raises:
            TypeError: a count that is no integer, a dtype that no cache can have, a device that is none.
            ValueError: a count or head dim out of range, an unknown layout, a device that is not there.
            MemoryError, torch.OutOfMemoryError: the pools do not fit.

        Example:
            >>> kv = PagedKV.allocate(64, 16, 8, 128)
            >>> tuple(kv.k_cache.shape)
            (64, 16, 8, 128)
        """

        for arg, count in (("num_pages", num_pages), ("page_size", page_size), ("num_kv_heads", num_kv_heads)):
            check_counts(arg, (count,), least=1)
        dims = (head_dim, head_dim if head_dim_v is None else head_dim_v)
        for arg, dim in zip(("head_dim", "head_dim_v"), dims):
            check_counts(arg, (dim,), least=8)
            if dim % 8 or dim > MAX_HEAD_DIM:
                raise ValueError(f"{arg}: expected a multiple of 8 from 8 to {MAX_HEAD_DIM}, got {dim}")
        if dtype not in (*DTYPES, *KV_DTYPES_QUANTISED):
            raise TypeError(
                f"dtype: expected bfloat16, float16, float32, float8_e4m3fn, float8_e5m2 or int8, got {dtype}"
            )
        _check_layout(layout)
        check_device(device)
        size = num_pages * page_size * num_kv_heads * sum(dims) * dtype.itemsize
        if size >= 1 << 63:
            raise ValueError(f"num_pages: expected pools of less than 2^63 bytes, got {size} bytes")
        shape = (page_size, num_kv_heads) if layout == "NHD" else (num_kv_heads, page_size)
        try:
            pools = [torch.empty(num_pages, *shape, dim, dtype=dtype, device=device) for dim in dims]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # the CPU's allocator has no class of its own
            if "alloc" not in str(error):
                raise
            raise MemoryError(f"num_pages: expected pools that fit in memory, got {size} bytes") from error
        return cls(*pools) if layout == "NHD" else cls(*(pool.transpose(1, 2) for pool in pools))

    @classmethod
    def from_fused(cls, pool: Tensor, layout: str = "NHD") -> PagedKV:
        """Views of one pool that holds K and V side by side.

        Args:
            pool: [N, 2, P, Hkv, D] ("NHD") or [N, 2, Hkv, P, D] ("HND").

        Raises:
            TypeError: not a tensor.
            ValueError: another shape, an unknown layout.
        """
        if not isinstance(pool, Tensor):
            raise TypeError(f"pool: expected a tensor, got {type(pool).__name__}")
        if pool.dim() != 5 or pool.shape[1] != 2:
            raise ValueError(f"pool: expected [N, 2, P, Hkv, D] or [N, 2, Hkv, P, D], got {list(pool.shape)}")
        _check_layout(layout)
        k, v = pool.unbind(1)
        return cls(k, v) if layout == "NHD" else cls(k.transpose(1, 2), v.transpose(1, 2))


def _check_layout(layout: str) -> None:
    if layout not in ("NHD", "HND"):
        raise ValueError(f"layout: expected 'NHD' or 'HND', got {layout!r}")

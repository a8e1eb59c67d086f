"""What chunkattn offers to vLLM, in the terms in which vLLM asks."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionType, MultipleOf
from vllm.v1.kv_cache_interface import KVCacheLayout

import chunkattn
from chunkattn.compat.vllm.cache_dtypes import QUANTISED
from chunkattn.compat.vllm.implementation import ChunkAttentionImpl
from chunkattn.compat.vllm.metadata import ChunkAttentionMetadataBuilder
from chunkattn.validate import MAX_HEAD_DIM


class ChunkAttentionBackend(AttentionBackend):  # type: ignore[misc]
    """What chunkattn can do, in vLLM's terms; vLLM asks before it takes the backend."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "bfloat16", "float16", *QUANTISED]
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[ChunkAttentionImpl]:
        return ChunkAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[ChunkAttentionMetadataBuilder]:
        return ChunkAttentionMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Every layout, since strides carry it; a head's tokens of a block side by side are read the fastest."""
        return (KVCacheLayout.LBHNC, *(layout for layout in KVCacheLayout if layout is not KVCacheLayout.LBHNC))

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and 8 <= head_size <= MAX_HEAD_DIM

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return bool(attn_type == AttentionType.DECODER)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        # On the CPU vLLM rewrites transferred blocks into the layout of its own CPU kernels.
        return _device_type() != "cpu"

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: Any,
    ) -> str | None:
        if kv_cache_dtype in ("bfloat16", "float16") and getattr(torch, kv_cache_dtype) != dtype:
            return f"a {kv_cache_dtype} cache under {dtype} queries"
        spec = chunkattn.AttentionSpec(
            _device_type(), dtype, QUANTISED.get(kv_cache_dtype or "", dtype), 1, 1, head_size, head_size,
            block_size or 16, sinks=has_sink, kv_scale="tensor" if kv_cache_dtype in QUANTISED else "none",
        )  # fmt: skip
        support = chunkattn.supports(spec)
        return None if support else "; ".join(support.reasons)


def _device_type() -> str:
    from vllm.platforms import current_platform

    return str(current_platform.device_type)

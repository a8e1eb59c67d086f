"""A step of vLLM's engine, as the operators take it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.logger import init_logger
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadataBuilder, CommonAttentionMetadata

import chunkattn
from chunkattn.compat.vllm.cache_dtypes import QUANTISED
from chunkattn.types import Plan

# vLLM shows the messages of loggers under its own name only.
logger = init_logger("vllm.chunkattn")


@dataclass
class ChunkAttentionMetadata:
    """A step's tensors; plans are made by the first layer that needs one and reused by the others.

    Attributes:
        num_actual_tokens: tokens without padding.
        cu_seqlens_q: int32 [B+1].
        seq_lens: int32 [B].
        block_table: int32 [B, M].
        causal: whether tokens see later ones.
        plans: by (window, heads, dtype, …).
    """

    num_actual_tokens: int
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    block_table: Tensor
    causal: bool
    plans: dict[tuple[Any, ...], Plan] = field(default_factory=dict)


class ChunkAttentionMetadataBuilder(AttentionMetadataBuilder[ChunkAttentionMetadata]):  # type: ignore[misc]
    """Takes a step's tensors over as they are: no reordering, no copies to the host."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        config = vllm_config.model_config
        kv_dtype = QUANTISED.get(vllm_config.cache_config.cache_dtype, config.dtype)
        heads = config.get_num_attention_heads(vllm_config.parallel_config)
        spec = chunkattn.AttentionSpec(
            device.type, config.dtype, kv_dtype, heads, kv_cache_spec.num_kv_heads, kv_cache_spec.head_size,
            kv_cache_spec.head_size, kv_cache_spec.block_size,
        )  # fmt: skip
        support = chunkattn.supports(spec)
        if not support:  # what the environment asks for, perhaps
            raise chunkattn.UnsupportedError("; ".join(support.reasons))
        taken = next(line.split(None, 2) for line in chunkattn.explain(spec).splitlines() if " taken " in line)
        window = getattr(kv_cache_spec, "sliding_window", None)
        logger.info_once(
            "chunkattn %s serves the attention of %d layers%s: %s (%s)",
            chunkattn.__version__,
            len(layer_names),
            f" with a window of {window} tokens" if window else "",
            taken[0],
            taken[2],
        )

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> ChunkAttentionMetadata:
        common = common_attn_metadata
        if isinstance(common.causal, Tensor):
            raise chunkattn.UnsupportedError("causal: expected True or False in chunkattn's vLLM backend, got a tensor")
        for name in ("mm_req_doc_ranges", "rswa_prefix_lens"):
            if getattr(common, name, None) is not None:
                raise chunkattn.UnsupportedError(f"{name}: expected None in chunkattn's vLLM backend, got a value")
        return ChunkAttentionMetadata(
            common.num_actual_tokens,
            common.query_start_loc[: common.num_reqs + 1],
            common.seq_lens[: common.num_reqs],
            common.block_table_tensor[: common.num_reqs],
            common.causal,
        )

"""vLLM's attention backend over `chunkattn.append_kv`, `chunkattn.plan` and `chunkattn.attention`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm import envs
from vllm.logger import init_logger
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)

import chunkattn
from chunkattn.types import Plan
from chunkattn.validate import MAX_HEAD_DIM

logger = init_logger("vllm.chunkattn")

_QUANTISED = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


class ChunkAttentionBackend(AttentionBackend):  # type: ignore[misc]
    """What chunkattn can do, in vLLM's terms; vLLM asks before it takes the backend."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "bfloat16", "float16", *_QUANTISED]
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
            _device_type(), dtype, _QUANTISED.get(kv_cache_dtype or "", dtype), 1, 1, head_size, head_size,
            block_size or 16, sinks=has_sink, kv_scale="tensor" if kv_cache_dtype in _QUANTISED else "none",
        )  # fmt: skip
        support = chunkattn.supports(spec)
        return None if support else "; ".join(support.reasons)


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
        kv_dtype = _QUANTISED.get(vllm_config.cache_config.cache_dtype, config.dtype)
        heads = config.get_num_attention_heads(vllm_config.parallel_config)
        spec = chunkattn.AttentionSpec(
            device.type, config.dtype, kv_dtype, heads, kv_cache_spec.num_kv_heads, kv_cache_spec.head_size,
            kv_cache_spec.head_size, kv_cache_spec.block_size,
        )  # fmt: skip
        taken = next(line for line in chunkattn.explain(spec).splitlines() if " taken " in line)
        logger.info(
            "chunkattn %s serves the attention of %d layers: %s",
            chunkattn.__version__,
            len(layer_names),
            " ".join(taken.split()),
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


class ChunkAttentionImpl(AttentionImpl[ChunkAttentionMetadata]):  # type: ignore[misc]
    """One layer's attention."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """Keeps the layer's options.

        Args:
            scale: factor of q·k.
            alibi_slopes: one a head; the bias is slope·(key position - query position).
            sliding_window: tokens a query sees, itself included.
            kv_sharing_target_layer_name: the layer whose cache this one reads; vLLM then appends nothing for it.
            sinks: [num_heads] logits in the softmax denominator.

        Raises:
            UnsupportedError: attention of an encoder.
        """
        if attn_type != AttentionType.DECODER:
            raise chunkattn.UnsupportedError(
                f"attn_type: expected 'decoder' in chunkattn's vLLM backend, got {attn_type!r}"
            )
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self._slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self._window = (-1 if sliding_window is None else sliding_window - 1, -1)
        self._softcap = float(logits_soft_cap or 0.0)
        self._sinks = sinks
        self._quantised = _QUANTISED.get(kv_cache_dtype)
        self._invariant = bool(envs.VLLM_BATCH_INVARIANT)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: ChunkAttentionMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Attention of one layer; keys and values are in the cache already (`do_kv_cache_update`).

        Args:
            layer: holds the scales of a quantised cache.
            query: [T, Hq, D], padding included.
            kv_cache: [N, Hkv, P, 2·D], K and V of a token side by side; any strides.
            attn_metadata: None while vLLM warms up.
            output: [T, Hq, D] or [T, Hq·D]; written.

        Raises:
            UnsupportedError: quantised output.
        """
        for name, given in (("output_scale", output_scale), ("output_block_scale", output_block_scale)):
            if given is not None:
                raise chunkattn.UnsupportedError(f"{name}: expected None in chunkattn's vLLM backend, got a tensor")
        if attn_metadata is None:
            return output
        tokens = attn_metadata.num_actual_tokens
        q, out = query[:tokens], output.view(-1, self.num_heads, self.head_size)[:tokens]
        k_cache, v_cache = self._pool(kv_cache)
        k_scale, v_scale = self._scales(layer)
        chunkattn.attention(
            q,
            k_cache,
            v_cache,
            attn_metadata.block_table,
            attn_metadata.cu_seqlens_q,
            attn_metadata.seq_lens,
            softmax_scale=self.scale,
            causal=attn_metadata.causal,
            window=self._window,
            softcap=self._softcap,
            alibi_slopes=self._on(q, self._slopes),
            sinks=self._on(q, self._sinks),
            k_scale=k_scale,
            v_scale=v_scale,
            invariant=self._invariant,
            plan=self._plan(attn_metadata, q, k_cache),
            out=out,
        )
        return output

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Writes a step's keys and values.

        Args:
            key, value: [T, Hkv, D]; rows past those of `slot_mapping` are padding.
            slot_mapping: int64 [T], ``page * P + slot``, negative = skip.
        """
        k_cache, v_cache = self._pool(kv_cache)
        k_scale, v_scale = self._scales(layer)
        tokens = key.shape[0]
        # The slots say it all; a request of its own stands for the page table they came from.
        ends = torch.tensor([0, tokens], dtype=torch.int32, device=key.device)
        table = ends.new_zeros(1, -(-tokens // k_cache.shape[1]))
        chunkattn.append_kv(
            key.view(tokens, self.num_kv_heads, self.head_size),
            value.view(tokens, self.num_kv_heads, self.head_size),
            k_cache,
            v_cache,
            table,
            ends,
            ends[1:],
            slot_mapping=slot_mapping,
            k_scale=k_scale,
            v_scale=v_scale,
        )

    def _pool(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """[N, P, Hkv, D] views of K and V."""
        if self._quantised is not None and kv_cache.dtype != self._quantised:
            kv_cache = kv_cache.view(self._quantised)
        k_cache, v_cache = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        return k_cache, v_cache

    def _scales(self, layer: Any) -> tuple[Tensor | None, Tensor | None]:
        if self._quantised is None:
            return None, None
        return tuple(s.reshape(()) if s.numel() == 1 else s for s in (layer._k_scale, layer._v_scale))  # type: ignore[return-value]

    def _on(self, q: Tensor, values: Tensor | None) -> Tensor | None:
        return None if values is None else values.to(q.device, torch.float32)

    def _plan(self, metadata: ChunkAttentionMetadata, q: Tensor, k_cache: Tensor) -> Plan:
        facts = (self.num_heads, self.num_kv_heads, self.head_size, k_cache.shape[1], q.dtype, self._window)
        if facts not in metadata.plans:
            metadata.plans[facts] = chunkattn.plan(
                metadata.cu_seqlens_q,
                metadata.seq_lens,
                num_q_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_size,
                page_size=k_cache.shape[1],
                dtype=q.dtype,
                causal=metadata.causal,
                window=self._window,
                invariant=self._invariant,
                layout="HND",
            )
        return metadata.plans[facts]


def _device_type() -> str:
    from vllm.platforms import current_platform

    return str(current_platform.device_type)

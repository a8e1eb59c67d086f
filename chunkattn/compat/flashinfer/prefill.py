"""Batches of prompts or chunks over a paged pool."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chunkattn.compat.flashinfer.csr_step import csr_batch, names_of, positions, split_rule
from chunkattn.compat.flashinfer.custom_mask import tree_mask, unpack_bits
from chunkattn.compat.flashinfer.paged_wrapper import PagedWrapper
from chunkattn.compat.flashinfer.planned_step import Mask, PlannedStep, Scale, Shape
from chunkattn.compat.flashinfer.pools import PagedKVCache, dtype_of
from chunkattn.compat.refusals import refuse_unless

_NAME = "BatchPrefillWithPagedKVCacheWrapper"


class BatchPrefillWithPagedKVCacheWrapper(PagedWrapper):
    """Plans a ragged batch once and runs it in every layer.

    Example:
        >>> import torch
        >>> from chunkattn.compat import flashinfer
        >>> wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(torch.empty(1 << 20, dtype=torch.uint8))
        >>> ends = lambda *numbers: torch.tensor(numbers, dtype=torch.int32)
        >>> wrapper.plan(ends(0, 5, 6), ends(0, 1, 3), ends(3, 0, 2), ends(5, 4), 8, 2, 64, 16, causal=True)
        >>> pool = torch.randn(4, 2, 16, 2, 64).half()
        >>> wrapper.run(torch.randn(6, 8, 64).half(), pool).shape
        torch.Size([6, 8, 64])
    """

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
        jit_args: Any = None,
        jit_kwargs: Any = None,
    ) -> None:
        """Keeps the workspace and the layout.

        Args:
            float_workspace_buffer: any dtype; used for partial states where it is large enough.
            kv_layout: "NHD" or "HND".
            use_cuda_graph, jit_args, jit_kwargs, and the `_buf` tensors of a CUDA graph: only at their defaults.
        """
        refuse_unless(
            _NAME,
            use_cuda_graph=(use_cuda_graph, False),
            qo_indptr_buf=(qo_indptr_buf, None),
            paged_kv_indptr_buf=(paged_kv_indptr_buf, None),
            paged_kv_indices_buf=(paged_kv_indices_buf, None),
            paged_kv_last_page_len_buf=(paged_kv_last_page_len_buf, None),
            custom_mask_buf=(custom_mask_buf, None),
            mask_indptr_buf=(mask_indptr_buf, None),
            jit_args=(jit_args, None),
            jit_kwargs=(jit_kwargs, None),
        )
        super().__init__(float_workspace_buffer, kv_layout)

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        non_blocking: bool = True,
        prefix_len_ptr: Tensor | None = None,
        token_pos_in_items_ptr: Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: Tensor | None = None,
        seq_lens: Tensor | None = None,
        seq_lens_q: Tensor | None = None,
        block_tables: Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        """Plans a batch.

        Args:
            qo_indptr, paged_kv_indptr: int32 [B+1]; paged_kv_indices int32 [pages]; paged_kv_last_page_len int32 [B].
            custom_mask: bool, each request's [q_len, kv_len] flattened; replaces `causal`. Keys older than a request's
                new tokens have to be visible.
            packed_custom_mask: the same as bits, uint8, each request beginning at a byte.
            pos_encoding_mode: "NONE", "ALIBI", or "ROPE_LLAMA", which copies and rotates a step's keys in every call.
            rope_scale, rope_theta: parameters of "ROPE_LLAMA" (1 and 10,000), without effect in other modes.
            window_left: keys to the left of a query, -1 = all.
            logits_soft_cap: None or 0 = off.
            seq_lens, block_tables: KV lengths [B] and page table [B, M]; replace what the CSR tables say.
            seq_lens_q: [B], has to agree with `qo_indptr`.
            fixed_split_size: any size asks for rows that don't depend on the batch, and gives
                ``invariant=True``, whose split boundaries are fixed.
            disable_split_kv: no split.
            prefix_len_ptr, token_pos_in_items_ptr, token_pos_in_items_len, max_item_len_ptr: only at their defaults.

        Raises:
            UnsupportedError: an argument that can't be honoured, by name.
            ValueError, TypeError: as `chunkattn.plan`.
        """
        refuse_unless(
            _NAME + ".plan",
            prefix_len_ptr=(prefix_len_ptr, None),
            token_pos_in_items_ptr=(token_pos_in_items_ptr, None),
            token_pos_in_items_len=(token_pos_in_items_len, 0),
            max_item_len_ptr=(max_item_len_ptr, None),
        )
        if seq_lens_q is not None and not torch.equal(seq_lens_q.flatten().to(qo_indptr), torch.diff(qo_indptr)):
            raise ValueError(f"seq_lens_q: expected the differences of qo_indptr, got {seq_lens_q.tolist()}")
        tables = paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        names = names_of(
            "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", seq_lens, block_tables
        )
        batch = csr_batch(qo_indptr, *tables, page_size, seq_lens, block_tables, names)
        tree = None
        if custom_mask is not None or packed_custom_mask is not None:
            q_lens, kv_lens = torch.diff(batch.cu_seqlens_q).tolist(), batch.seq_lens.tolist()
            if custom_mask is None:
                assert packed_custom_mask is not None
                custom_mask = unpack_bits(packed_custom_mask, [q * kv for q, kv in zip(q_lens, kv_lens)])
            tree, causal = tree_mask(custom_mask, q_lens, kv_lens), False
        slopes, rope = positions(
            _NAME + ".plan", pos_encoding_mode, num_qo_heads, logits_soft_cap, rope_scale, rope_theta
        )
        q_dtype = dtype_of(q_data_type)
        self._step = PlannedStep(
            batch,
            Shape(
                num_qo_heads,
                num_kv_heads,
                head_dim_qk,
                head_dim_qk if head_dim_vo is None else head_dim_vo,
                page_size,
                self._layout,
                q_dtype,
                q_dtype if kv_data_type is None else dtype_of(kv_data_type),
                q_dtype if o_data_type is None else dtype_of(o_data_type),
            ),
            Mask(
                causal,
                window_left,
                logits_soft_cap or 0.0,
                tree,
                slopes,
                sm_scale,
                *split_rule(fixed_split_size, disable_split_kv),
                rope,
            ),
            self._workspace,
            {**names, "head_dim": "head_dim_qk", "head_dim_v": "head_dim_vo"},
        )

    begin_forward = plan

    def run(
        self,
        q: Tensor,
        paged_kv_cache: PagedKVCache,
        *args: Any,
        q_scale: Scale | None = None,
        k_scale: Scale | None = None,
        v_scale: Scale | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        kv_cache_sf: Any = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        use_fp16_softmax: bool | None = None,
        uses_spcompress: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention of one layer.

        Args:
            q: [nnz, Hq, D].
            paged_kv_cache: see `chunkattn.compat.flashinfer.pools.unpack`.
            q_scale, k_scale, v_scale: numbers or tensors of one; k and v of a quantised pool also [Hkv].
            out: [nnz, Hq, Dv] to write into.
            lse: fp32 [nnz, Hq] to write into, base 2.
            window_left: replaces the planned one.
            sinks: [Hq], a logit each in the denominator.
            args, kv_cache_sf, skip_softmax_threshold_scale_factor, uses_spcompress: only at their defaults.

        Returns:
            out, or (out, lse) with `return_lse`.
        """
        return self._run(
            q,
            paged_kv_cache,
            scales=(q_scale, k_scale, v_scale),
            out=out,
            lse=lse,
            return_lse=return_lse,
            window_left=window_left,
            sinks=sinks,
            neutral={
                "args": (args, ()),
                "kv_cache_sf": (kv_cache_sf, None),
                "skip_softmax_threshold_scale_factor": (skip_softmax_threshold_scale_factor, None),
                "uses_spcompress": (uses_spcompress, False),
            },
        )

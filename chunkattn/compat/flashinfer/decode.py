"""Batches of decodes over a paged pool: one query token a request, or the same few."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chunkattn.compat.flashinfer.csr_step import csr_batch, names_of, positions, split_rule
from chunkattn.compat.flashinfer.paged_wrapper import PagedWrapper, planned
from chunkattn.compat.flashinfer.planned_step import Mask, PlannedStep, Scale, Shape
from chunkattn.compat.flashinfer.pools import PagedKVCache, dtype_of
from chunkattn.compat.refusals import refuse_unless

_NAME = "BatchDecodeWithPagedKVCacheWrapper"


class BatchDecodeWithPagedKVCacheWrapper(PagedWrapper):
    """Plans a batch of decodes once and runs it in every layer; `run` is that of the prefill wrapper.

    Example:
        >>> import torch
        >>> from chunkattn.compat import flashinfer
        >>> wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(1 << 20, dtype=torch.uint8), "HND")
        >>> ends = lambda *numbers: torch.tensor(numbers, dtype=torch.int32)
        >>> wrapper.plan(ends(0, 1, 3), ends(3, 0, 2), ends(5, 4), 8, 2, 64, 16)
        >>> pool = torch.randn(4, 2, 2, 16, 64).half()
        >>> wrapper.run(torch.randn(2, 8, 64).half(), pool).shape
        torch.Size([2, 8, 64])
    """

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
        jit_args: Any = None,
    ) -> None:
        """Keeps the workspace and the layout; arguments as in the prefill wrapper."""
        refuse_unless(
            _NAME,
            use_cuda_graph=(use_cuda_graph, False),
            paged_kv_indptr_buffer=(paged_kv_indptr_buffer, None),
            paged_kv_indices_buffer=(paged_kv_indices_buffer, None),
            paged_kv_last_page_len_buffer=(paged_kv_last_page_len_buffer, None),
            jit_args=(jit_args, None),
        )
        super().__init__(float_workspace_buffer, kv_layout)

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype | None = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        block_tables: Tensor | None = None,
        seq_lens: Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        *,
        window_right: int = 0,
        q_len_per_req: int = 1,
    ) -> None:
        """Plans a batch; arguments as in the prefill wrapper, and:

        Args:
            indptr, indices, last_page_len: the CSR page table.
            data_type: of the pool where `kv_data_type` is None, and of q where `q_data_type` is.
            window_right: only 0.
            q_len_per_req: query tokens of every request; more than one are causal among each other.
        """
        refuse_unless(_NAME + ".plan", window_right=(window_right, 0))
        if q_len_per_req < 1:
            raise ValueError(f"q_len_per_req: expected at least 1, got {q_len_per_req}")
        q_dtype = dtype_of(q_data_type or data_type or "float16")
        kv_dtype = kv_data_type or data_type
        slopes, rope = positions(
            _NAME + ".plan", pos_encoding_mode, num_qo_heads, logits_soft_cap, rope_scale, rope_theta
        )
        requests = indptr.shape[0] - 1
        qo_indptr = torch.arange(requests + 1, dtype=torch.int32, device=indptr.device) * q_len_per_req
        names = names_of("indptr", "indptr", "indices", "last_page_len", seq_lens, block_tables)
        self._step = PlannedStep(
            csr_batch(qo_indptr, indptr, indices, last_page_len, page_size, seq_lens, block_tables, names),
            Shape(
                num_qo_heads,
                num_kv_heads,
                head_dim,
                head_dim,
                page_size,
                self._layout,
                q_dtype,
                q_dtype if kv_dtype is None else dtype_of(kv_dtype),
                q_dtype if o_data_type is None else dtype_of(o_data_type),
            ),
            Mask(
                True,
                window_left,
                logits_soft_cap or 0.0,
                None,
                slopes,
                sm_scale,
                *split_rule(fixed_split_size, disable_split_kv),
                rope,
            ),
            self._workspace,
            {**names, "head_dim_v": "head_dim"},
        )
        self._requests = requests

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
        q_len_per_req: int | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        kv_cache_sf: Any = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention of one layer: q [B * q_len_per_req, Hq, D]; the rest as in the prefill wrapper."""
        step = planned(self._step)
        if q_len_per_req is not None and self._requests * q_len_per_req != step.num_tokens:
            raise ValueError(
                f"q_len_per_req: expected {step.num_tokens // max(self._requests, 1)}, as planned, got {q_len_per_req}"
            )
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
            },
        )

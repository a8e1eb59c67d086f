"""Mixed batches of prompts and decodes over a paged pool."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chunkattn.compat.flashinfer.csr_step import csr_batch, names_of
from chunkattn.compat.flashinfer.paged_wrapper import planned
from chunkattn.compat.flashinfer.planned_step import Mask, PlannedStep, Scale, Scales, Shape
from chunkattn.compat.flashinfer.pools import PagedKVCache, check_layout
from chunkattn.compat.refusals import foreign_names, refuse_unless


class BatchAttention:
    """Plans a mixed batch once and runs it in every layer.

    Example:
        >>> import torch
        >>> from chunkattn.compat import flashinfer
        >>> attention = flashinfer.BatchAttention(device="cpu")
        >>> ends = lambda *numbers: torch.tensor(numbers, dtype=torch.int32)
        >>> attention.plan(ends(0, 5, 6), ends(0, 1, 3), ends(3, 0, 2), ends(5, 20), 8, 2, 64, 64, 16, causal=True)
        >>> out, lse = attention.run(torch.randn(6, 8, 64).bfloat16(), torch.randn(4, 2, 16, 2, 64).bfloat16())
        >>> out.shape, lse.shape
        (torch.Size([6, 8, 64]), torch.Size([6, 8]))
    """

    def __init__(self, kv_layout: str = "NHD", device: str | torch.device = "cuda") -> None:
        """Keeps the layout.

        Args:
            kv_layout: "NHD" or "HND".
            device: where the planned tensors are; they are moved there.
        """
        self._layout = check_layout(kv_layout)
        self._device = torch.device(device)
        self._step: PlannedStep | None = None
        self._softcap = 0.0

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_len_arr: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int,
        page_size: int,
        causal: bool = False,
        sm_scale: float | None = None,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.bfloat16,
        kv_data_type: torch.dtype = torch.bfloat16,
        use_profiler: bool = False,
    ) -> None:
        """Plans a batch.

        Args:
            qo_indptr, kv_indptr: int32 [B+1]; kv_indices int32 [pages].
            kv_len_arr: int32 [B], KV lengths in tokens.
            logits_soft_cap: allows one in `run`, as in FlashInfer; the value of `run` counts.
            use_profiler: only False.
        """
        refuse_unless("BatchAttention.plan", use_profiler=(use_profiler, False))
        lengths = kv_len_arr.to(self._device)
        last = torch.ones_like(lengths)  # unused: the lengths are given
        self._softcap = logits_soft_cap or 0.0
        names = names_of("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr") | {"seq_lens": "kv_len_arr"}
        self._step = PlannedStep(
            csr_batch(qo_indptr, kv_indptr, kv_indices.to(self._device), last, page_size, lengths, None, names),
            Shape(
                num_qo_heads,
                num_kv_heads,
                head_dim_qk,
                head_dim_vo,
                page_size,
                self._layout,
                q_data_type,
                kv_data_type,
                q_data_type,
            ),
            Mask(causal, softmax_scale=sm_scale),
            None,
            {**names, "head_dim": "head_dim_qk", "head_dim_v": "head_dim_vo"},
        )

    def run(
        self,
        q: Tensor,
        kv_cache: PagedKVCache,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        k_scale: Scale | None = None,
        v_scale: Scale | None = None,
        logits_soft_cap: float = 0.0,
        profiler_buffer: Tensor | None = None,
        kv_cache_sf: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of one layer: (out [nnz, Hq, Dv], lse [nnz, Hq], base 2).

        Raises:
            ValueError: a soft-cap that `plan` did not announce.
        """
        step = planned(self._step)
        refuse_unless("BatchAttention.run", profiler_buffer=(profiler_buffer, None), kv_cache_sf=(kv_cache_sf, None))
        if logits_soft_cap > 0.0 and self._softcap <= 0.0:
            raise ValueError(f"logits_soft_cap: expected 0, as planned, got {logits_soft_cap}")
        with foreign_names(paged_kv_cache="kv_cache"):
            result, state = step.run(
                "BatchAttention.run",
                q,
                kv_cache,
                scales=Scales(None, k_scale, v_scale),
                out=out,
                lse=lse,
                return_lse=True,
                softcap=max(logits_soft_cap, 0.0),
            )
        assert state is not None  # return_lse is set
        return result, state

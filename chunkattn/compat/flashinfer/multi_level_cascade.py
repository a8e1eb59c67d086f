"""Prefixes that several requests share, attended once for all of them: a level each, whose states are merged."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn.compat.flashinfer.cascade import merge_states
from chunkattn.compat.flashinfer.pools import PagedKVCache
from chunkattn.compat.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
from chunkattn.compat.refusals import foreign_names, refuse_unless

_NAME = "MultiLevelCascadeAttentionWrapper"
_LISTS: dict[str, str | None] = {
    "qo_indptr": "qo_indptr_arr",
    "paged_kv_indptr": "paged_kv_indptr_arr",
    "paged_kv_indices": "paged_kv_indices_arr",
    "head_dim_qk": "head_dim",
}


class MultiLevelCascadeAttentionWrapper:
    """Plans the levels of a batch once and runs them in every layer.

    Level 0 holds what most requests share. In a level a "request" is a run of queries that see the same keys.

    Example:
        >>> import torch
        >>> from chunkattn.compat import flashinfer
        >>> wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, torch.empty(1 << 20, dtype=torch.uint8))
        >>> ends = lambda *numbers: torch.tensor(numbers, dtype=torch.int32)
        >>> queries, pages = [ends(0, 3), ends(0, 1, 2, 3)], [ends(0, 2), ends(0, 1, 2, 3)]
        >>> wrapper.plan(queries, pages, [ends(4, 0), ends(1, 2, 3)], [ends(16), ends(5, 1, 9)], 8, 2, 64, 16)
        >>> wrapper.run(torch.randn(3, 8, 64).half(), torch.randn(5, 2, 16, 2, 64).half()).shape
        torch.Size([3, 8, 64])
    """

    def __init__(
        self,
        num_levels: int,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf_arr: list[Tensor] | None = None,
        paged_kv_indptr_buf_arr: list[Tensor] | None = None,
        paged_kv_indices_buf_arr: list[Tensor] | None = None,
        paged_kv_last_page_len_buf_arr: list[Tensor] | None = None,
    ) -> None:
        """Makes a prefill wrapper a level.

        Args:
            num_levels: at least 1.
            float_workspace_buffer, kv_layout: as in the prefill wrapper.
            use_cuda_graph and the `_buf_arr` lists of a CUDA graph: only at their defaults.
        """
        refuse_unless(
            _NAME,
            use_cuda_graph=(use_cuda_graph, False),
            qo_indptr_buf_arr=(qo_indptr_buf_arr, None),
            paged_kv_indptr_buf_arr=(paged_kv_indptr_buf_arr, None),
            paged_kv_indices_buf_arr=(paged_kv_indices_buf_arr, None),
            paged_kv_last_page_len_buf_arr=(paged_kv_last_page_len_buf_arr, None),
        )
        if num_levels < 1:
            raise ValueError(f"num_levels: expected at least 1, got {num_levels}")
        self._levels = [
            BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout) for _ in range(num_levels)
        ]

    def plan(
        self,
        qo_indptr_arr: list[Tensor],
        paged_kv_indptr_arr: list[Tensor],
        paged_kv_indices_arr: list[Tensor],
        paged_kv_last_page_len: list[Tensor],
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
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
    ) -> None:
        """Plans a batch.

        Args:
            qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len: a level's tensors each, as
                the prefill wrapper takes them; every level's queries are the same tokens.
            causal: of the last level; the others hold what every query of theirs sees.
            pos_encoding_mode, window_left: only at their defaults, since a level knows no positions outside itself.

        Raises:
            UnsupportedError: an argument that can't be honoured, by name.
            ValueError, TypeError: as the prefill wrapper.
        """
        refuse_unless(_NAME + ".plan", pos_encoding_mode=(pos_encoding_mode, "NONE"), window_left=(window_left, -1))
        lists = {
            "qo_indptr_arr": qo_indptr_arr,
            "paged_kv_indptr_arr": paged_kv_indptr_arr,
            "paged_kv_indices_arr": paged_kv_indices_arr,
            "paged_kv_last_page_len": paged_kv_last_page_len,
        }
        for name, tensors in lists.items():
            if len(tensors) != len(self._levels):
                raise ValueError(f"{name}: expected {len(self._levels)} tensors, one a level, got {len(tensors)}")
        last = len(self._levels) - 1
        with foreign_names(**_LISTS):
            for level, wrapper in enumerate(self._levels):
                wrapper.plan(
                    qo_indptr_arr[level],
                    paged_kv_indptr_arr[level],
                    paged_kv_indices_arr[level],
                    paged_kv_last_page_len[level],
                    num_qo_heads,
                    num_kv_heads,
                    head_dim,
                    page_size,
                    causal=causal and level == last,
                    use_fp16_qk_reduction=use_fp16_qk_reduction,
                    sm_scale=sm_scale,
                    logits_soft_cap=logits_soft_cap,
                    rope_scale=rope_scale,
                    rope_theta=rope_theta,
                    q_data_type=q_data_type,
                    kv_data_type=kv_data_type,
                )

    begin_forward = plan

    def run(self, q: Tensor, paged_kv_cache: PagedKVCache) -> Tensor:
        """Attention of one layer over the keys of all levels.

        Args:
            q: [nnz, Hq, D].
            paged_kv_cache: see `chunkattn.compat.flashinfer.pools.unpack`.

        Returns:
            [nnz, Hq, D].
        """
        with foreign_names(**_LISTS):
            outs, lses = zip(*(wrapper.run_return_lse(q, paged_kv_cache) for wrapper in self._levels))
        return merge_states(torch.stack(outs, 1), torch.stack(lses, 1))[0]

    forward = run

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffers: list[Tensor]) -> None:
        """Takes another workspace from the next `plan` on; integers need none."""
        for wrapper, integers in zip(self._levels, int_workspace_buffers, strict=True):
            wrapper.reset_workspace_buffer(float_workspace_buffer, integers)

"""FlashInfer's paged attention, appending and merging over chunkattn's operators.

`BatchPrefillWithPagedKVCacheWrapper`, `BatchDecodeWithPagedKVCacheWrapper` and `BatchAttention` plan a step from CSR
page tables and run it layer by layer, `MultiLevelCascadeAttentionWrapper` with shared prefixes as levels of their own;
pools are one 5-D tensor or a (k, v) pair, NHD or HND, any page size. Log-sum-exps are base 2, [nnz, Hq], as
FlashInfer's are.

Every argument is honoured or refused by name. Accepted without effect are the choices among FlashInfer's own kernels
(`backend`, `use_tensor_cores`, `use_fp16_qk_reduction`, `use_fp16_softmax`), launch hints (`enable_pdl`,
`non_blocking`) and upper bounds (`max_token_per_sequence`, `max_sequence_kv`): none of them changes the result.
"""

from __future__ import annotations

from chunkattn.compat.flashinfer.attention import BatchAttention
from chunkattn.compat.flashinfer.cascade import merge_state, merge_state_in_place, merge_states
from chunkattn.compat.flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from chunkattn.compat.flashinfer.multi_level_cascade import MultiLevelCascadeAttentionWrapper
from chunkattn.compat.flashinfer.page import append_paged_kv_cache, get_batch_indices_positions, get_seq_lens
from chunkattn.compat.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper

__all__ = [
    "BatchAttention",
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "MultiLevelCascadeAttentionWrapper",
    "append_paged_kv_cache",
    "get_batch_indices_positions",
    "get_seq_lens",
    "merge_state",
    "merge_state_in_place",
    "merge_states",
]

"""No argument of FlashInfer's is dropped: each changes what comes out, is refused by name, or is a known hint.

The signatures of FlashInfer 0.6.18 are recorded here as facts. For every argument a call differs in it alone.
"""

from __future__ import annotations

import math

import pytest
import torch
from foreign_function import (
    CHECKED,
    HINT,
    Change,
    Function,
    cases,
    check_argument,
    check_names,
    doubled,
    ints,
    misfits,
    refused,
    seeded,
)

from chunkattn.compat import flashinfer


def prefill_base():
    torch.manual_seed(6)
    return {
        "float_workspace_buffer": torch.empty(1 << 16, dtype=torch.uint8), "qo_indptr": ints(0, 3, 5),
        "paged_kv_indptr": ints(0, 2, 4), "paged_kv_indices": ints(3, 0, 1, 4), "paged_kv_last_page_len": ints(2, 4),
        "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 16, "page_size": 4, "causal": True,
        "q_data_type": torch.float32, "q": torch.randn(5, 4, 16), "paged_kv_cache": torch.randn(5, 2, 4, 2, 16),
    }  # fmt: skip


POOL = prefill_base()["paged_kv_cache"]
POOL_DTYPE = "paged_kv_cache: expected torch.float16, as planned, got torch.float32"
SQUARE = seeded(12, 5, 2, 4, 4, 16)  # as many heads as slots of a page
MASK = torch.ones(6, dtype=torch.bool).repeat(3)
SEEN = torch.cat([MASK.index_fill(0, torch.tensor([5, 11]), False), torch.ones(16, dtype=torch.bool)])
WRAPPED = {
    **doubled("q", "paged_kv_cache"),
    "kv_layout": Change("HND", beside={"paged_kv_cache": SQUARE, "num_kv_heads": 4}),
    "use_cuda_graph": refused(True),
    "backend": Change("fa2", HINT),
    "jit_args": refused(["mine"]),
    "float_workspace_buffer": Change(torch.empty(0, dtype=torch.uint8), HINT),
    "pos_encoding_mode": Change("ALIBI"),
    "sm_scale": Change(0.7),
    "window_left": Change(1),
    "run_window_left": Change(1),
    "logits_soft_cap": Change(1.5),
    "rope_scale": Change(3.0, beside={"pos_encoding_mode": "ROPE_LLAMA"}),
    "rope_theta": Change(50.0, beside={"pos_encoding_mode": "ROPE_LLAMA"}),
    "q_data_type": misfits(torch.float16, "q: expected torch.float16, as planned, got torch.float32"),
    "kv_data_type": misfits(torch.float16, POOL_DTYPE),
    "o_data_type": Change(torch.float16),
    "non_blocking": Change(False, HINT),
    "fixed_split_size": Change(4, HINT),  # rows that don't depend on the batch
    "disable_split_kv": Change(True, HINT),
    "q_scale": Change(0.5),
    "k_scale": Change(0.5),
    "v_scale": Change(0.5),
    "out": Change(lambda a: torch.full_like(a["q"], math.nan)),
    "lse": Change(lambda a: torch.full(a["q"].shape[:2], math.nan)),
    "return_lse": Change(True),
    "enable_pdl": Change(True, HINT),
    "sinks": Change(torch.tensor([0.5, 0.0, -1.0, 2.0])),
    "kv_cache_sf": refused(torch.ones(1)),
    "skip_softmax_threshold_scale_factor": refused(1.0),
}
PREFILL = {
    **WRAPPED,
    "qo_indptr_buf": refused(ints(0)),
    "paged_kv_indptr_buf": refused(ints(0)),
    "paged_kv_indices_buf": refused(ints(0)),
    "paged_kv_last_page_len_buf": refused(ints(0)),
    "custom_mask_buf": refused(ints(0)),
    "mask_indptr_buf": refused(ints(0)),
    "jit_kwargs": refused({"mine": 1}),
    "qo_indptr": Change(ints(0, 2, 5)),
    "paged_kv_indptr": Change(ints(0, 1, 4), beside={"qo_indptr": ints(0, 1, 5)}),
    "paged_kv_indices": Change(ints(3, 0, 1, 2)),
    "paged_kv_last_page_len": Change(ints(3, 4)),
    "num_qo_heads": misfits(8, "plan: expected one made with num_qo_heads = 4, got 8"),
    "num_kv_heads": misfits(4, "plan: expected one made with num_kv_heads = 2, got 4"),
    "head_dim_qk": Change(300, CHECKED),
    "page_size": Change(0, CHECKED),
    "head_dim_vo": Change(300, CHECKED),
    "custom_mask": Change(SEEN),
    "packed_custom_mask": Change(torch.tensor([0b11011111, 0b11110111, 0b11, 255, 255], dtype=torch.uint8)),
    "causal": Change(False),
    "use_fp16_qk_reduction": Change(True, HINT),
    "prefix_len_ptr": refused(ints(1)),
    "token_pos_in_items_ptr": refused(ints(1)),
    "token_pos_in_items_len": refused(3),
    "max_item_len_ptr": refused(ints(1)),
    "seq_lens": Change(ints(5, 8)),
    "seq_lens_q": Change(ints(2, 2), CHECKED),
    "block_tables": Change(ints(1, 2, 3, 4).view(2, 2)),
    "max_token_per_sequence": Change(9, HINT),
    "max_sequence_kv": Change(9, HINT),
    "use_fp16_softmax": Change(True, HINT),
    "uses_spcompress": refused(True),
}


def decode_base():
    torch.manual_seed(7)
    return {
        "float_workspace_buffer": torch.empty(1 << 16, dtype=torch.uint8), "indptr": ints(0, 2, 4),
        "indices": ints(3, 0, 1, 4), "last_page_len": ints(2, 4), "num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 16,
        "page_size": 4, "q_data_type": torch.float32, "q": torch.randn(2, 4, 16), "paged_kv_cache": POOL,
    }  # fmt: skip


DECODE = {
    **WRAPPED,
    "use_tensor_cores": Change(True, HINT),
    "paged_kv_indptr_buffer": refused(ints(0)),
    "paged_kv_indices_buffer": refused(ints(0)),
    "paged_kv_last_page_len_buffer": refused(ints(0)),
    "indptr": Change(ints(0, 1, 4)),
    "indices": Change(ints(3, 0, 1, 2)),
    "last_page_len": Change(ints(3, 4)),
    "num_qo_heads": misfits(8, "plan: expected one made with num_qo_heads = 4, got 8"),
    "num_kv_heads": misfits(4, "plan: expected one made with num_kv_heads = 2, got 4"),
    "head_dim": Change(300, CHECKED),
    "page_size": Change(0, CHECKED),
    "data_type": misfits(torch.float16, POOL_DTYPE),
    "block_tables": Change(ints(1, 2, 3, 4).view(2, 2)),
    "seq_lens": Change(ints(5, 8)),
    "window_right": refused(1),
    "q_len_per_req": misfits(3, "q: expected 6 tokens, as planned, got 2"),
}


def mixed_base():
    torch.manual_seed(8)
    return {
        "device": "cpu", "qo_indptr": ints(0, 3, 5), "kv_indptr": ints(0, 2, 4), "kv_indices": ints(3, 0, 1, 4),
        "kv_len_arr": ints(6, 8), "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 16, "head_dim_vo": 16,
        "page_size": 4, "q_data_type": torch.float32, "kv_data_type": torch.float32, "q": torch.randn(5, 4, 16),
        "kv_cache": POOL,
    }  # fmt: skip


MIXED = {
    **doubled("q", "kv_cache"),
    "kv_layout": Change("HND", beside={"kv_cache": SQUARE, "num_kv_heads": 4}),
    "device": misfits("meta", r"Tensor.item\(\) cannot be called on meta tensors"),
    "qo_indptr": Change(ints(0, 2, 5)),
    "kv_indptr": Change(ints(0, 1, 3)),
    "kv_indices": Change(ints(3, 0, 1, 2)),
    "kv_len_arr": Change(ints(5, 8)),
    "num_qo_heads": misfits(8, "plan: expected one made with num_qo_heads = 4, got 8"),
    "num_kv_heads": misfits(4, "plan: expected one made with num_kv_heads = 2, got 4"),
    "head_dim_qk": Change(300, CHECKED),
    "head_dim_vo": Change(300, CHECKED),
    "page_size": Change(0, CHECKED),
    "causal": Change(True),
    "sm_scale": Change(0.7),
    "logits_soft_cap": Change(1.5, HINT),  # allows one in the run
    "run_logits_soft_cap": Change(1.5, beside={"logits_soft_cap": 1.0}),
    "q_data_type": misfits(torch.float16, "q: expected torch.float16, as planned, got torch.float32"),
    "kv_data_type": misfits(torch.float16, POOL_DTYPE.replace("paged_kv_cache", "kv_cache")),
    "use_profiler": refused(True),
    "out": WRAPPED["out"],
    "lse": WRAPPED["lse"],
    "k_scale": Change(0.5),
    "v_scale": Change(0.5),
    "profiler_buffer": refused(ints(0)),
    "kv_cache_sf": refused(torch.ones(1)),
}


def cascade_base():
    torch.manual_seed(13)
    return {
        "num_levels": 2, "float_workspace_buffer": torch.empty(1 << 16, dtype=torch.uint8),
        "qo_indptr_arr": [ints(0, 5), ints(0, 3, 5)], "paged_kv_indptr_arr": [ints(0, 2), ints(0, 1, 2)],
        "paged_kv_indices_arr": [ints(2, 0), ints(3, 1)], "paged_kv_last_page_len": [ints(3), ints(3, 4)],
        "num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 16, "page_size": 4, "q_data_type": torch.float32,
        "q": torch.randn(5, 4, 16), "paged_kv_cache": POOL,
    }  # fmt: skip


CASCADE = {
    **{name: WRAPPED[name] for name in ("float_workspace_buffer", "use_cuda_graph", "sm_scale", "logits_soft_cap")},
    **{name: WRAPPED[name] for name in ("q_data_type", "kv_data_type", "q", "paged_kv_cache")},
    **{name: Change(value, HINT) for name, value in (("rope_scale", 3.0), ("rope_theta", 50.0))},  # of a refused mode
    "kv_layout": WRAPPED["kv_layout"],
    "num_levels": misfits(3, "qo_indptr_arr: expected 3 tensors, one a level, got 2"),
    "qo_indptr_buf_arr": refused([ints(0)]),
    "paged_kv_indptr_buf_arr": refused([ints(0)]),
    "paged_kv_indices_buf_arr": refused([ints(0)]),
    "paged_kv_last_page_len_buf_arr": refused([ints(0)]),
    "qo_indptr_arr": Change([ints(0, 5), ints(0, 2, 5)]),
    "paged_kv_indptr_arr": Change([ints(0, 1), ints(0, 1, 2)]),
    "paged_kv_indices_arr": Change([ints(2, 4), ints(3, 1)]),
    "paged_kv_last_page_len": Change([ints(2), ints(3, 4)]),
    "num_qo_heads": PREFILL["num_qo_heads"],
    "num_kv_heads": PREFILL["num_kv_heads"],
    "head_dim": Change(300, CHECKED),
    "page_size": Change(0, CHECKED),
    "causal": Change(True),
    "pos_encoding_mode": refused("ALIBI"),
    "use_fp16_qk_reduction": Change(True, HINT),
    "window_left": refused(1),
}


def append_base():
    torch.manual_seed(9)
    return {
        "append_key": torch.randn(3, 2, 16), "append_value": torch.randn(3, 2, 16), "batch_indices": ints(0, 1, 1),
        "positions": ints(5, 6, 7), "paged_kv_cache": POOL.clone(), "kv_indices": ints(3, 0, 1, 4),
        "kv_indptr": ints(0, 2, 4), "kv_last_page_len": ints(2, 4),
    }  # fmt: skip


APPEND = {
    **doubled("append_key", "append_value", "paged_kv_cache"),
    "batch_indices": Change(ints(1, 0, 0)),
    "positions": Change(ints(4, 5, 6)),
    "kv_indices": Change(ints(2, 0, 1, 2)),
    "kv_indptr": Change(ints(0, 1, 4)),
    "kv_last_page_len": Change(ints(2, 4, 1), CHECKED),
    "kv_layout": Change(
        "HND",
        beside={"paged_kv_cache": SQUARE, "append_key": torch.randn(3, 4, 16), "append_value": torch.randn(3, 4, 16)},
    ),
}
LAST_TOKENS = {"append_indptr": ints(0, 2, 3), "seq_lens": ints(5, 9), "nnz": 3}
STATES = {
    "v_a": seeded(10, 3, 2, 16), "s_a": torch.rand(3, 2),
    "v_b": seeded(11, 3, 2, 16), "s_b": torch.rand(3, 2),
}  # fmt: skip
FUNCTIONS = {
    "flashinfer.BatchPrefillWithPagedKVCacheWrapper": Function.wrapper(
        flashinfer.BatchPrefillWithPagedKVCacheWrapper,
        "float_workspace_buffer kv_layout use_cuda_graph qo_indptr_buf paged_kv_indptr_buf paged_kv_indices_buf "
        "paged_kv_last_page_len_buf custom_mask_buf mask_indptr_buf backend jit_args jit_kwargs qo_indptr "
        "paged_kv_indptr paged_kv_indices paged_kv_last_page_len num_qo_heads num_kv_heads head_dim_qk page_size "
        "head_dim_vo custom_mask packed_custom_mask causal pos_encoding_mode use_fp16_qk_reduction sm_scale "
        "window_left logits_soft_cap rope_scale rope_theta q_data_type kv_data_type o_data_type non_blocking "
        "prefix_len_ptr token_pos_in_items_ptr token_pos_in_items_len max_item_len_ptr seq_lens seq_lens_q "
        "block_tables max_token_per_sequence max_sequence_kv fixed_split_size disable_split_kv q paged_kv_cache "
        "q_scale k_scale v_scale out lse return_lse enable_pdl run_window_left sinks kv_cache_sf "
        "skip_softmax_threshold_scale_factor use_fp16_softmax uses_spcompress",
        prefill_base,
        PREFILL,
    ),
    "flashinfer.BatchDecodeWithPagedKVCacheWrapper": Function.wrapper(
        flashinfer.BatchDecodeWithPagedKVCacheWrapper,
        "float_workspace_buffer kv_layout use_cuda_graph use_tensor_cores paged_kv_indptr_buffer "
        "paged_kv_indices_buffer paged_kv_last_page_len_buffer backend jit_args indptr indices last_page_len "
        "num_qo_heads num_kv_heads head_dim page_size pos_encoding_mode window_left window_right logits_soft_cap "
        "q_data_type kv_data_type o_data_type data_type sm_scale rope_scale rope_theta non_blocking block_tables "
        "seq_lens fixed_split_size disable_split_kv q_len_per_req q paged_kv_cache q_scale k_scale v_scale out lse "
        "return_lse enable_pdl run_window_left sinks skip_softmax_threshold_scale_factor kv_cache_sf",
        decode_base,
        DECODE,
    ),
    "flashinfer.BatchAttention": Function.wrapper(
        flashinfer.BatchAttention,
        "kv_layout device qo_indptr kv_indptr kv_indices kv_len_arr num_qo_heads num_kv_heads head_dim_qk head_dim_vo "
        "page_size causal sm_scale logits_soft_cap q_data_type kv_data_type use_profiler q kv_cache out lse k_scale "
        "v_scale run_logits_soft_cap profiler_buffer kv_cache_sf",
        mixed_base,
        MIXED,
    ),
    "flashinfer.MultiLevelCascadeAttentionWrapper": Function.wrapper(
        flashinfer.MultiLevelCascadeAttentionWrapper,
        "num_levels float_workspace_buffer kv_layout use_cuda_graph qo_indptr_buf_arr paged_kv_indptr_buf_arr "
        "paged_kv_indices_buf_arr paged_kv_last_page_len_buf_arr qo_indptr_arr paged_kv_indptr_arr "
        "paged_kv_indices_arr paged_kv_last_page_len num_qo_heads num_kv_heads head_dim page_size causal "
        "pos_encoding_mode use_fp16_qk_reduction sm_scale window_left logits_soft_cap rope_scale rope_theta "
        "q_data_type kv_data_type q paged_kv_cache",
        cascade_base,
        CASCADE,
    ),
    "flashinfer.append_paged_kv_cache": Function.plain(
        flashinfer.append_paged_kv_cache,
        "append_key append_value batch_indices positions paged_kv_cache kv_indices kv_indptr kv_last_page_len "
        "kv_layout",
        append_base,
        APPEND,
    ),
    "flashinfer.get_batch_indices_positions": Function.plain(
        flashinfer.get_batch_indices_positions,
        "append_indptr seq_lens nnz batch_indices positions",
        lambda: dict(LAST_TOKENS),
        {
            "append_indptr": Change(ints(0, 1, 3)),
            "seq_lens": Change(ints(4, 9)),
            "nnz": Change(4),
            "batch_indices": Change(lambda a: torch.full((3,), -9, dtype=torch.int32)),
            "positions": Change(lambda a: torch.full((3,), -9, dtype=torch.int32)),
        },
    ),
    "flashinfer.merge_state": Function.plain(
        flashinfer.merge_state,
        "v_a s_a v_b s_b",
        lambda: dict(STATES),
        doubled(*STATES),
    ),
    "flashinfer.merge_state_in_place": Function.plain(
        flashinfer.merge_state_in_place,
        "v s v_other s_other mask",
        lambda: {name: x.clone() for name, x in zip(("v", "s", "v_other", "s_other"), STATES.values())},
        {**doubled("v", "s", "v_other", "s_other"), "mask": Change(torch.tensor([True, False, True]))},
    ),
    "flashinfer.merge_states": Function.plain(
        flashinfer.merge_states,
        "v s",
        lambda: {
            "v": torch.stack([STATES["v_a"], STATES["v_b"]], 1),
            "s": torch.stack([STATES["s_a"], STATES["s_b"]], 1),
        },
        doubled("v", "s"),
    ),
}


@pytest.mark.parametrize(("function", "name"), cases(FUNCTIONS))
def test_no_argument_is_dropped(function, name):
    check_argument(FUNCTIONS[function], name)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_recorded_name_is_taken(function):
    check_names(FUNCTIONS[function])

"""No argument of a foreign signature is dropped: each changes what comes out, is refused by name, or is a known hint.

The signatures are recorded here as facts: FlashAttention 2.8 and 3 and FlashInfer 0.6.18. For every argument of theirs
a call differs in that argument alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import chunkattn
from chunkattn.compat import flash_attn, flash_attn_interface, flashinfer

INT32 = torch.int32
Arguments = dict[str, Any]
CHANGES = "what comes out, or what the call writes, differs"
REFUSED = "UnsupportedError that begins with the name"
CHECKED = "ValueError or TypeError that begins with the name"
MISFITS = "ValueError or TypeError about what no longer fits it"
HINT = "accepted, and nothing differs"


def ints(*numbers):
    return torch.tensor(numbers, dtype=INT32)


@dataclass(frozen=True)
class Change:
    """One argument's other value.

    Attributes:
        value: what it is changed to; a function of the other arguments makes it of them.
        effect: what must come of it.
        beside: further arguments of both calls, the changed and the unchanged one.
    """

    value: Any
    effect: str = CHANGES
    beside: Arguments = field(default_factory=dict)


@dataclass(frozen=True)
class Function:
    """A foreign function.

    Attributes:
        call: runs it with arguments by name; returns the tensors that come out.
        signature: its names, in order.
        base: fresh arguments of the unchanged call.
        changes: of every name.
    """

    call: Callable[[Arguments], list[torch.Tensor]]
    signature: str
    base: Callable[[], Arguments]
    changes: dict[str, Change]


def tensors(result, arguments):
    """What came out, and every tensor argument as the call left it."""
    out = [result] if isinstance(result, torch.Tensor) else [x for x in result or () if isinstance(x, torch.Tensor)]
    return out, [x for key, x in arguments.items() if isinstance(x, torch.Tensor) and key != "float_workspace_buffer"]


def plain(function):
    return lambda arguments: function(**arguments)


def refused(value, beside=None):
    return Change(value, REFUSED, beside or {})


# FlashAttention


def varlen_base():
    torch.manual_seed(0)
    q, k, v = torch.randn(9, 4, 16), torch.randn(12, 2, 16), torch.randn(12, 2, 16)
    return {
        "q": q, "k": k, "v": v, "cu_seqlens_q": ints(0, 4, 9), "cu_seqlens_k": ints(0, 6, 12), "max_seqlen_q": 5,
        "max_seqlen_k": 6,
    }  # fmt: skip


def pools(arguments, dtype=torch.float32):
    return {name: arguments[name].view(3, 4, 2, 16).clamp(-3, 3).to(dtype) for name in ("k", "v")}


PAGED = {"block_table": ints(*range(6)).view(2, 3) % 3, "max_seqlen_k": 12, "cu_seqlens_k": ints(0, 6, 16)}
FP8 = {**PAGED, **pools(varlen_base(), torch.float8_e4m3fn)}
COMMON = {
    "softmax_scale": Change(0.7),
    "causal": Change(True),
    "window_size": Change((2, 1)),
    "softcap": Change(1.5),
    "num_splits": Change(3, HINT),  # another order of the same sums
    "pack_gqa": Change(True, HINT),
    "sm_margin": refused(2),
    "attention_chunk": refused(4),
    "q_descale": refused(torch.ones(2, 2)),
}
VARLEN = {
    **COMMON,
    "q": Change(lambda a: a["q"] * 2),
    "k": Change(lambda a: a["k"] * 2),
    "v": Change(lambda a: a["v"] * 2),
    "cu_seqlens_q": Change(ints(0, 3, 9)),
    "cu_seqlens_k": Change(ints(0, 7, 12), beside={"max_seqlen_k": 7}),
    "max_seqlen_q": Change(9, HINT),
    "max_seqlen_k": Change(5, CHECKED),
    "dropout_p": refused(0.1),
    "alibi_slopes": Change(torch.tensor([0.5, 0.25, 0.1, 0.05])),
    "deterministic": Change(True, HINT),
    "return_attn_probs": Change(True),
    "block_table": Change(ints(2, 1, 0, 0, 1, 2).view(2, 3), beside={**PAGED, **pools(varlen_base())}),
    "seqused_q": Change(ints(4, 2)),
    "seqused_k": Change(ints(6, 2)),
    "qv": refused(torch.zeros(9, 4, 16)),
    "k_descale": Change(torch.tensor([2.0, 0.5]), beside=FP8),
    "v_descale": Change(torch.tensor([2.0, 0.5]), beside=FP8),
}


def cache_base():
    torch.manual_seed(1)
    k_cache, v_cache = torch.randn(2, 3, 12, 2, 16).unbind()
    return {
        "q": torch.randn(2, 3, 4, 16), "k_cache": k_cache.clone(), "v_cache": v_cache.clone(),
        "k": torch.randn(2, 2, 2, 16), "v": torch.randn(2, 2, 2, 16), "cache_seqlens": ints(5, 9),
    }  # fmt: skip


ANGLES = torch.rand(16, 4, generator=torch.Generator().manual_seed(2)) * 3
ROTARY = {"rotary_cos": ANGLES.cos(), "rotary_sin": ANGLES.sin()}
READ_ONLY_FP8 = {
    "k": None, "v": None, "k_cache": cache_base()["k_cache"].to(torch.float8_e4m3fn),
    "v_cache": cache_base()["v_cache"].to(torch.float8_e4m3fn),
}  # fmt: skip
PACKED_Q = {"q": torch.randn(6, 4, 16, generator=torch.Generator().manual_seed(3))}
PACKED_NEW = {
    "k": torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(4)),
    "v": torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(5)),
}
TABLE = ints(2, 0, 1, 3, 4, 5).view(2, 3)
IN_PAGES = {name: cache_base()[name].view(9, 4, 2, 16) for name in ("k_cache", "v_cache")}
CACHE = {
    **COMMON,
    "q": Change(lambda a: a["q"] * 2),
    "k_cache": Change(lambda a: a["k_cache"] * 2),
    "v_cache": Change(lambda a: a["v_cache"] * 2),
    "k": Change(lambda a: a["k"] * 2),
    "v": Change(lambda a: a["v"] * 2),
    "rotary_cos": Change(torch.ones(16, 4), beside=ROTARY),
    "rotary_sin": Change(torch.zeros(16, 4), beside=ROTARY),
    "cache_seqlens": Change(ints(4, 9)),
    "cache_batch_idx": Change(ints(2, 0)),
    "cache_leftpad": Change(ints(1, 3)),
    "block_table": Change(TABLE.flip(0), beside={**IN_PAGES, "block_table": TABLE}),
    "page_table": Change(TABLE.flip(0), beside={**IN_PAGES, "page_table": TABLE}),
    "rotary_interleaved": Change(False, beside=ROTARY),
    "alibi_slopes": Change(torch.tensor([0.5, 0.25, 0.1, 0.05]), beside={"causal": True}),
    "return_softmax_lse": Change(True),
    "qv": refused(torch.zeros(2, 3, 4, 16)),
    "cu_seqlens_q": Change(ints(0, 2, 6), beside={**PACKED_Q, "cu_seqlens_q": ints(0, 3, 6), "causal": True}),
    "cu_seqlens_k_new": Change(ints(0, 1, 4), beside={**PACKED_NEW, "cu_seqlens_k_new": ints(0, 2, 4)}),
    "max_seqlen_q": Change(7, HINT),
    "rotary_seqlens": Change(ints(1, 3), beside=ROTARY),
    "k_descale": Change(torch.full((2, 2), 2.0), beside=READ_ONLY_FP8),
    "v_descale": Change(torch.full((2, 2), 2.0), beside=READ_ONLY_FP8),
    "scheduler_metadata": refused(torch.zeros(8, dtype=INT32)),
}


def metadata_base():
    return {
        "batch_size": 2, "max_seqlen_q": 3, "max_seqlen_k": 12, "num_heads_q": 4, "num_heads_kv": 2, "headdim": 16,
        "cache_seqlens": ints(5, 9),
    }  # fmt: skip


def metadata(arguments):
    plan = flash_attn_interface.get_scheduler_metadata(**arguments)
    return [plan.words.clone()]


METADATA = {
    "batch_size": Change(3, MISFITS),
    "max_seqlen_q": Change(2),
    "max_seqlen_k": Change(0, MISFITS),
    "num_heads_q": Change(8),
    "num_heads_kv": Change(4),
    "headdim": Change(300, CHECKED),
    "cache_seqlens": Change(ints(4, 9)),
    "qkv_dtype": Change(torch.float64, CHECKED),
    "headdim_v": Change(300, CHECKED),
    "cu_seqlens_q": Change(ints(0, 1, 6)),
    "cu_seqlens_k_new": Change(ints(0, 1, 4)),
    "cache_leftpad": Change(ints(1, 0)),
    "page_size": Change(-4, CHECKED),
    "max_seqlen_k_new": Change(2),
    "causal": Change(True),
    "window_size": Change((2, 1)),
    "attention_chunk": refused(4),
    "has_softcap": Change(True, HINT),
    "num_splits": Change(2),
    "pack_gqa": Change(True, HINT),
    "sm_margin": refused(1),
}

# FlashInfer


def prefill_base():
    torch.manual_seed(6)
    return {
        "float_workspace_buffer": torch.empty(1 << 16, dtype=torch.uint8), "qo_indptr": ints(0, 3, 5),
        "paged_kv_indptr": ints(0, 2, 4), "paged_kv_indices": ints(3, 0, 1, 4), "paged_kv_last_page_len": ints(2, 4),
        "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 16, "page_size": 4, "causal": True,
        "q_data_type": torch.float32, "q": torch.randn(5, 4, 16), "paged_kv_cache": torch.randn(5, 2, 4, 2, 16),
    }  # fmt: skip


def wrapped(wrapper, run="run"):
    """Constructor, plan and run in one call: their names are told apart by the signatures."""

    def call(arguments):
        left = dict(arguments)

        def taken(method):
            names = inspect.signature(method).parameters
            return {name: left.pop(name) for name in list(left) if name in names}

        own = taken(wrapper.__init__)
        instance = wrapper(**own)
        # window_left is planned and, given as run_window_left, of the run.
        again = {name[4:]: left.pop(name) for name in list(left) if name.startswith("run_")}
        instance.plan(**taken(wrapper.plan))
        return getattr(instance, run)(**taken(wrapper.run), **again)

    return call


POOL = prefill_base()["paged_kv_cache"]
SQUARE = torch.randn(5, 2, 4, 4, 16, generator=torch.Generator().manual_seed(12))  # as many heads as slots of a page
MASK = torch.ones(6, dtype=torch.bool).repeat(3)
SEEN = torch.cat([MASK.index_fill(0, torch.tensor([5, 11]), False), torch.ones(16, dtype=torch.bool)])
WRAPPED = {
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
    "q_data_type": Change(torch.float16, MISFITS),
    "kv_data_type": Change(torch.float16, MISFITS),
    "o_data_type": Change(torch.float16),
    "non_blocking": Change(False, HINT),
    "fixed_split_size": Change(4, HINT),  # rows that don't depend on the batch
    "disable_split_kv": Change(True, HINT),
    "q": Change(lambda a: a["q"] * 2),
    "paged_kv_cache": Change(lambda a: a["paged_kv_cache"] * 2),
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
    "num_qo_heads": Change(8, MISFITS),
    "num_kv_heads": Change(4, MISFITS),
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
    "num_qo_heads": Change(8, MISFITS),
    "num_kv_heads": Change(4, MISFITS),
    "head_dim": Change(300, CHECKED),
    "page_size": Change(0, CHECKED),
    "data_type": Change(torch.float16, MISFITS),
    "block_tables": Change(ints(1, 2, 3, 4).view(2, 2)),
    "seq_lens": Change(ints(5, 8)),
    "window_right": refused(1),
    "q_len_per_req": Change(3, MISFITS),
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
    "kv_layout": Change("HND", beside={"kv_cache": SQUARE, "num_kv_heads": 4}),
    "device": Change("meta", "raises"),
    "qo_indptr": Change(ints(0, 2, 5)),
    "kv_indptr": Change(ints(0, 1, 3)),
    "kv_indices": Change(ints(3, 0, 1, 2)),
    "kv_len_arr": Change(ints(5, 8)),
    "num_qo_heads": Change(8, MISFITS),
    "num_kv_heads": Change(4, MISFITS),
    "head_dim_qk": Change(300, CHECKED),
    "head_dim_vo": Change(300, CHECKED),
    "page_size": Change(0, CHECKED),
    "causal": Change(True),
    "sm_scale": Change(0.7),
    "logits_soft_cap": Change(1.5, HINT),  # allows one in the run
    "run_logits_soft_cap": Change(1.5, beside={"logits_soft_cap": 1.0}),
    "q_data_type": Change(torch.float16, MISFITS),
    "kv_data_type": Change(torch.float16, MISFITS),
    "use_profiler": refused(True),
    "q": Change(lambda a: a["q"] * 2),
    "kv_cache": Change(lambda a: a["kv_cache"] * 2),
    "out": WRAPPED["out"],
    "lse": WRAPPED["lse"],
    "k_scale": Change(0.5),
    "v_scale": Change(0.5),
    "profiler_buffer": refused(ints(0)),
    "kv_cache_sf": refused(torch.ones(1)),
}


def append_base():
    torch.manual_seed(9)
    return {
        "append_key": torch.randn(3, 2, 16), "append_value": torch.randn(3, 2, 16), "batch_indices": ints(0, 1, 1),
        "positions": ints(5, 6, 7), "paged_kv_cache": POOL.clone(), "kv_indices": ints(3, 0, 1, 4),
        "kv_indptr": ints(0, 2, 4), "kv_last_page_len": ints(2, 4),
    }  # fmt: skip


APPEND = {
    "append_key": Change(lambda a: a["append_key"] * 2),
    "append_value": Change(lambda a: a["append_value"] * 2),
    "batch_indices": Change(ints(1, 0, 0)),
    "positions": Change(ints(4, 5, 6)),
    "paged_kv_cache": Change(lambda a: a["paged_kv_cache"] * 2),
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
    "v_a": torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(10)), "s_a": torch.rand(3, 2),
    "v_b": torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(11)), "s_b": torch.rand(3, 2),
}  # fmt: skip


def doubled(*names):
    return {name: Change(lambda a, name=name: a[name] * 2) for name in names}


FUNCTIONS = {
    "flash_attn.flash_attn_varlen_func": Function(
        plain(flash_attn.flash_attn_varlen_func),
        "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p softmax_scale causal window_size softcap "
        "alibi_slopes deterministic return_attn_probs block_table",
        varlen_base,
        {**VARLEN, "alibi_slopes": Change(torch.rand(4), beside={"causal": True})},
    ),
    "flash_attn.flash_attn_with_kvcache": Function(
        plain(flash_attn.flash_attn_with_kvcache),
        "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad block_table "
        "softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits return_softmax_lse",
        cache_base,
        CACHE,
    ),
    "flash_attn_interface.flash_attn_varlen_func": Function(
        plain(flash_attn_interface.flash_attn_varlen_func),
        "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q seqused_k softmax_scale causal qv "
        "q_descale k_descale v_descale window_size attention_chunk softcap num_splits pack_gqa deterministic sm_margin "
        "return_attn_probs",
        varlen_base,
        {
            **VARLEN,
            **{f"{x}_descale": refused(torch.rand(2, 2)) for x in "kv"},  # packed keys are never quantised there
        },
    ),
    "flash_attn_interface.flash_attn_with_kvcache": Function(
        plain(flash_attn_interface.flash_attn_with_kvcache),
        "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad page_table "
        "cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale k_descale v_descale softmax_scale causal "
        "window_size attention_chunk softcap rotary_interleaved scheduler_metadata num_splits pack_gqa sm_margin "
        "return_softmax_lse",
        cache_base,
        CACHE,
    ),
    "flash_attn_interface.get_scheduler_metadata": Function(
        metadata,
        "batch_size max_seqlen_q max_seqlen_k num_heads_q num_heads_kv headdim cache_seqlens qkv_dtype headdim_v "
        "cu_seqlens_q cu_seqlens_k_new cache_leftpad page_size max_seqlen_k_new causal window_size attention_chunk "
        "has_softcap num_splits pack_gqa sm_margin",
        metadata_base,
        METADATA,
    ),
    "flashinfer.BatchPrefillWithPagedKVCacheWrapper": Function(
        wrapped(flashinfer.BatchPrefillWithPagedKVCacheWrapper),
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
    "flashinfer.BatchDecodeWithPagedKVCacheWrapper": Function(
        wrapped(flashinfer.BatchDecodeWithPagedKVCacheWrapper),
        "float_workspace_buffer kv_layout use_cuda_graph use_tensor_cores paged_kv_indptr_buffer "
        "paged_kv_indices_buffer paged_kv_last_page_len_buffer backend jit_args indptr indices last_page_len "
        "num_qo_heads num_kv_heads head_dim page_size pos_encoding_mode window_left window_right logits_soft_cap "
        "q_data_type kv_data_type o_data_type data_type sm_scale rope_scale rope_theta non_blocking block_tables "
        "seq_lens fixed_split_size disable_split_kv q_len_per_req q paged_kv_cache q_scale k_scale v_scale out lse "
        "return_lse enable_pdl run_window_left sinks skip_softmax_threshold_scale_factor kv_cache_sf",
        decode_base,
        DECODE,
    ),
    "flashinfer.BatchAttention": Function(
        wrapped(flashinfer.BatchAttention),
        "kv_layout device qo_indptr kv_indptr kv_indices kv_len_arr num_qo_heads num_kv_heads head_dim_qk head_dim_vo "
        "page_size causal sm_scale logits_soft_cap q_data_type kv_data_type use_profiler q kv_cache out lse k_scale "
        "v_scale run_logits_soft_cap profiler_buffer kv_cache_sf",
        mixed_base,
        MIXED,
    ),
    "flashinfer.append_paged_kv_cache": Function(
        plain(flashinfer.append_paged_kv_cache),
        "append_key append_value batch_indices positions paged_kv_cache kv_indices kv_indptr kv_last_page_len "
        "kv_layout",
        append_base,
        APPEND,
    ),
    "flashinfer.get_batch_indices_positions": Function(
        plain(flashinfer.get_batch_indices_positions),
        "append_indptr seq_lens nnz batch_indices positions",
        lambda: dict(LAST_TOKENS),
        {
            "append_indptr": Change(ints(0, 1, 3)),
            "seq_lens": Change(ints(4, 9)),
            "nnz": Change(4),
            "batch_indices": Change(lambda a: torch.full((3,), -9, dtype=INT32)),
            "positions": Change(lambda a: torch.full((3,), -9, dtype=INT32)),
        },
    ),
    "flashinfer.merge_state": Function(
        plain(flashinfer.merge_state),
        "v_a s_a v_b s_b",
        lambda: dict(STATES),
        doubled(*STATES),
    ),
    "flashinfer.merge_state_in_place": Function(
        plain(flashinfer.merge_state_in_place),
        "v s v_other s_other mask",
        lambda: {name: x.clone() for name, x in zip(("v", "s", "v_other", "s_other"), STATES.values())},
        {**doubled("v", "s", "v_other", "s_other"), "mask": Change(torch.tensor([True, False, True]))},
    ),
    "flashinfer.merge_states": Function(
        plain(flashinfer.merge_states),
        "v s",
        lambda: {
            "v": torch.stack([STATES["v_a"], STATES["v_b"]], 1),
            "s": torch.stack([STATES["s_a"], STATES["s_b"]], 1),
        },
        doubled("v", "s"),
    ),
}
CASES = [(function, name) for function, facts in FUNCTIONS.items() for name in facts.signature.split()]


def copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def same(a, b):
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.allclose(x.double(), y.double(), 1e-5, 1e-5, equal_nan=True)
        for x, y in zip(a, b)
    )


@pytest.mark.parametrize(("function", "name"), CASES, ids=".".join)
def test_no_argument_is_dropped(function, name):
    facts = FUNCTIONS[function]
    change = facts.changes[name]

    def run(**changed):
        arguments = {**facts.base(), **change.beside, **changed}
        arguments = {key: copied(value) for key, value in arguments.items()}
        before = [x.clone() for x in tensors(None, arguments)[1]]
        out, after = tensors(facts.call(arguments), arguments)
        # Of a call's own arguments only what it wrote counts.
        return out, [x for x, old in zip(after, before) if not torch.equal(x.view(torch.uint8), old.view(torch.uint8))]

    value = change.value({**facts.base(), **change.beside}) if callable(change.value) else change.value
    plain_name = name.removeprefix("run_")
    if change.effect == REFUSED:
        with pytest.raises(chunkattn.UnsupportedError, match=rf"^{plain_name}: "):
            run(**{name: value})
    elif change.effect == CHECKED:
        with pytest.raises((ValueError, TypeError)) as error:
            run(**{name: value})
        assert str(error.value).startswith(plain_name + ": ")
    elif change.effect == MISFITS:
        with pytest.raises((ValueError, TypeError)):
            run(**{name: value})
    elif change.effect == "raises":
        with pytest.raises(Exception, match=str(value)):
            run(**{name: value})
    else:
        (out, written), (other, other_written) = run(), run(**{name: value})
        differs = not (same(out, other) and same(written, other_written))
        assert differs == (change.effect == CHANGES)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_recorded_name_is_taken(function):
    module, _, rest = function.partition(".")
    owner = getattr({"flash_attn": flash_attn, "flashinfer": flashinfer}.get(module, flash_attn_interface), rest)
    if inspect.isclass(owner):
        methods = [owner.__init__, owner.plan, owner.run]
        taken = {name for method in methods for name in inspect.signature(method).parameters}
    else:
        taken = set(inspect.signature(owner).parameters)
    assert {name.removeprefix("run_") for name in FUNCTIONS[function].signature.split()} <= taken

"""No argument of FlashAttention's is dropped: each changes what comes out, is refused by name, or is a known hint.

The signatures of FlashAttention 2.8 and 3 are recorded here as facts. For every argument a call differs in it alone.
"""

from __future__ import annotations

import inspect

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

from chunkattn.compat import flash_attn, flash_attn_interface


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
    **doubled("q", "k", "v"),
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
PACKED_Q = {"q": seeded(3, 6, 4, 16)}
PACKED_NEW = {
    "k": seeded(4, 4, 2, 16),
    "v": seeded(5, 4, 2, 16),
}
TABLE = ints(2, 0, 1, 3, 4, 5).view(2, 3)
IN_PAGES = {name: cache_base()[name].view(9, 4, 2, 16) for name in ("k_cache", "v_cache")}
CACHE = {
    **COMMON,
    **doubled("q", "k_cache", "v_cache", "k", "v"),
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
    "scheduler_metadata": refused(torch.zeros(8, dtype=torch.int32)),
}


def metadata_base():
    return {
        "batch_size": 2, "max_seqlen_q": 3, "max_seqlen_k": 12, "num_heads_q": 4, "num_heads_kv": 2, "headdim": 16,
        "cache_seqlens": ints(5, 9),
    }  # fmt: skip


METADATA = {
    "batch_size": misfits(3, r"cache_seqlens: expected \[3\], got shape \[2\]"),
    "max_seqlen_q": Change(2),
    "max_seqlen_k": Change(0, CHECKED),
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
FUNCTIONS = {
    "flash_attn.flash_attn_varlen_func": Function.plain(
        flash_attn.flash_attn_varlen_func,
        "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p softmax_scale causal window_size softcap "
        "alibi_slopes deterministic return_attn_probs block_table",
        varlen_base,
        {**VARLEN, "alibi_slopes": Change(torch.rand(4), beside={"causal": True})},
    ),
    "flash_attn.flash_attn_with_kvcache": Function.plain(
        flash_attn.flash_attn_with_kvcache,
        "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad block_table "
        "softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits return_softmax_lse",
        cache_base,
        CACHE,
    ),
    "flash_attn_interface.flash_attn_varlen_func": Function.plain(
        flash_attn_interface.flash_attn_varlen_func,
        "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q seqused_k softmax_scale causal qv "
        "q_descale k_descale v_descale window_size attention_chunk softcap num_splits pack_gqa deterministic sm_margin "
        "return_attn_probs",
        varlen_base,
        {
            **VARLEN,
            **{f"{x}_descale": refused(torch.rand(2, 2)) for x in "kv"},  # packed keys are never quantised there
        },
    ),
    "flash_attn_interface.flash_attn_with_kvcache": Function.plain(
        flash_attn_interface.flash_attn_with_kvcache,
        "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad page_table "
        "cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale k_descale v_descale softmax_scale causal "
        "window_size attention_chunk softcap rotary_interleaved scheduler_metadata num_splits pack_gqa sm_margin "
        "return_softmax_lse",
        cache_base,
        CACHE,
    ),
    "flash_attn_interface.get_scheduler_metadata": Function(
        lambda arguments: flash_attn_interface.get_scheduler_metadata(**arguments).words.clone(),
        flash_attn_interface.get_scheduler_metadata,
        "batch_size max_seqlen_q max_seqlen_k num_heads_q num_heads_kv headdim cache_seqlens qkv_dtype headdim_v "
        "cu_seqlens_q cu_seqlens_k_new cache_leftpad page_size max_seqlen_k_new causal window_size attention_chunk "
        "has_softcap num_splits pack_gqa sm_margin",
        metadata_base,
        METADATA,
    ),
}


@pytest.mark.parametrize(("function", "name"), cases(FUNCTIONS))
def test_no_argument_is_dropped(function, name):
    check_argument(FUNCTIONS[function], name)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_recorded_name_is_taken(function):
    check_names(FUNCTIONS[function])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_positional_order_is_theirs(function):
    parameters = inspect.signature(FUNCTIONS[function].owner).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == FUNCTIONS[function].names()

"""FlashAttention's front ends name the tensor that is none, or has other dimensions than they read off it."""

from __future__ import annotations

import pytest
import torch
from foreign_function import ints, seeded

from chunkattn.compat import flash_attn, flash_attn_interface

PACKED = {
    "q": seeded(1, 4, 2, 8), "k": seeded(2, 4, 2, 8), "v": seeded(3, 4, 2, 8),
    "cu_seqlens_q": ints(0, 2, 4), "cu_seqlens_k": ints(0, 2, 4), "max_seqlen_q": 2, "max_seqlen_k": 2,
}  # fmt: skip
CACHE = {
    "q": seeded(1, 2, 1, 2, 8), "k_cache": seeded(2, 2, 9, 2, 8), "v_cache": seeded(3, 2, 9, 2, 8),
    "k": seeded(4, 2, 1, 2, 8), "v": seeded(5, 2, 1, 2, 8), "cache_seqlens": ints(3, 4),
}  # fmt: skip
METADATA = {
    "batch_size": 2, "max_seqlen_q": 3, "max_seqlen_k": 40, "num_heads_q": 4, "num_heads_kv": 2, "headdim": 8,
    "cache_seqlens": ints(3, 4),
}  # fmt: skip
FUNCTIONS = {
    "varlen": (flash_attn.flash_attn_varlen_func, PACKED),
    "paged varlen": (
        flash_attn.flash_attn_varlen_func,
        {**PACKED, "k": seeded(2, 3, 2, 2, 8), "v": seeded(3, 3, 2, 2, 8), "block_table": ints(0, 1)[:, None]},
    ),
    "varlen of 3": (flash_attn_interface.flash_attn_varlen_func, PACKED),
    "batch": (flash_attn.flash_attn_func, {name: seeded(1, 2, 3, 2, 8) for name in ("q", "k", "v")}),
    "cache": (flash_attn.flash_attn_with_kvcache, CACHE),
    "cache of 3": (flash_attn_interface.flash_attn_with_kvcache, CACHE),
    "metadata": (flash_attn_interface.get_scheduler_metadata, METADATA),
}
NEEDED = [
    (function, name)
    for function, (_, arguments) in FUNCTIONS.items()
    for name, value in arguments.items()
    if isinstance(value, torch.Tensor) and name not in ("block_table", "cu_seqlens_k")
    if not (name in ("cache_seqlens", "k", "v") and function.startswith("cache"))  # may be None
]
OPTIONAL = [
    *(("varlen", name) for name in ("cu_seqlens_k", "seqused_q", "seqused_k")),
    *(("paged varlen", name) for name in ("block_table", "cu_seqlens_k")),
    *(("cache", name) for name in ("k", "v", "cache_batch_idx", "cache_leftpad", "block_table", "rotary_seqlens")),
    *(("metadata", name) for name in ("cu_seqlens_q", "cu_seqlens_k_new", "cache_leftpad")),
]


@pytest.mark.parametrize(("function", "name"), NEEDED)
def test_a_tensor_is_needed(function, name):
    call, arguments = FUNCTIONS[function]
    call(**arguments)
    with pytest.raises(TypeError, match=rf"^{name}: expected a tensor, got NoneType$"):
        call(**{**arguments, name: None})


@pytest.mark.parametrize(("function", "name"), NEEDED + OPTIONAL)
def test_what_is_no_tensor_or_has_no_dimensions_is_named(function, name):
    call, arguments = FUNCTIONS[function]
    with pytest.raises(TypeError, match=rf"^{name}: expected a tensor, got list$"):
        call(**{**arguments, name: [1]})
    for sparse in (torch.ones(2, 2).to_sparse(), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])):
        with pytest.raises(ValueError, match=rf"^{name}: expected a dense tensor, got one that is "):
            call(**{**arguments, name: sparse})
    with pytest.raises(ValueError, match=rf"^{name}: expected \[.*, got shape \[\]$"):
        call(**{**arguments, name: torch.tensor(1)})


@pytest.mark.parametrize(
    ("function", "name", "value", "sentence"),
    [
        ("varlen", "v", seeded(1, 5, 2, 8), r"expected \[Tk, Hkv, Dv\] with the first two of k \[4, 2\], got"),
        ("paged varlen", "v", seeded(1, 4, 2, 2, 8), r"expected .* with the first three of k \[3, 2, 2\], got"),
        ("varlen", "seqused_q", ints(1, 1, 1), r"expected \[2\], got shape \[3\]"),
        ("batch", "k", seeded(1, 3, 3, 2, 8), "expected 2 sequences, as many as q has, got 3"),
        ("batch", "v", seeded(1, 3, 3, 2, 8), r"expected .* with the first three of k \[2, 3, 2\], got"),
        ("cache", "k", seeded(1, 3, 1, 2, 8), "expected 2 sequences, as many as q has, got 3"),
        ("cache", "cache_seqlens", ints(3, 4, 5), r"expected \[2\], got shape \[3\]"),
        ("cache", "cache_leftpad", ints(0, 0, 0), r"expected \[2\], got shape \[3\]"),
    ],
)
def test_what_does_not_fit_the_other_tensors_is_named(function, name, value, sentence):
    call, arguments = FUNCTIONS[function]
    with pytest.raises(ValueError, match=rf"^{name}: {sentence}"):
        call(**{**arguments, name: value})

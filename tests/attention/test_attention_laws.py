"""The bitwise laws on every backend: repetition, page placement, dead memory, outputs, workspace, invariant mode."""

from __future__ import annotations

import pytest
import torch

from chunkattn.testing import BATCHES, AttentionCase, build, laws

MIXED = AttentionCase("mixed", *BATCHES["mixed_with_empty"], num_q_heads=8, num_kv_heads=2, head_dim=64)
CASES = [
    MIXED,
    MIXED.but(name="fp32 hnd", dtype=torch.float32, layout="hnd", page_size=24, head_dim=40),
    MIXED.but(name="fp16 splits", dtype=torch.float16, num_splits=3, page_size=1, padding=5),
    MIXED.but(name="window cap alibi sinks", window=(31, -1), softcap=5.0, alibi="request", sinks=True, layout="fused"),
    MIXED.but(name="not causal", causal=False, window=(70, 9), page_size=128, layout="lanes"),
    MIXED.but(name="fp8", kv_dtype=torch.float8_e4m3fn, scale_mode="head", layout="layers"),
    MIXED.but(name="e5m2", kv_dtype=torch.float8_e5m2, scale_mode="token_head", page_size=8),
    MIXED.but(name="int8", kv_dtype=torch.int8, scale_mode="token_head", dtype=torch.float32),
    MIXED.but(name="tree", tree=True, head_dim=192, head_dim_v=128),
    MIXED.but(name="invariant", invariant=True, q_layout="fused_qkv"),
    MIXED.but(name="decodes", q_lens=(1,) * 5, kv_lens=(1, 17, 64, 200, 2100), page_size=32),
    MIXED.but(name="71 heads", num_q_heads=71, num_kv_heads=1, page_size=528),
]
INVARIANT = [
    case.but(name=f"{case.name} invariant", invariant=True, num_splits=None, padding=0)
    for case in CASES
    if not case.tree and not case.invariant
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_call_gives_same_bits(case, attend):
    laws.check_repeatable(attend, build(case), repeats=3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_physical_pages_do_not_matter(case, attend):
    laws.check_page_order(attend, case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_dead_memory_does_not_matter(case, attend):
    laws.check_dead_memory(attend, case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_are_always_written(case, attend):
    laws.check_outputs_overwritten(attend, build(case))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_workspace_contents_do_not_matter(case, attend, workspace_size):
    inputs = build(case)
    laws.check_workspace_contents(attend, inputs, workspace_size(inputs))


@pytest.mark.parametrize("case", INVARIANT, ids=str)
def test_invariant_rows_do_not_depend_on_neighbours(case, attend):
    laws.check_neighbours(attend, build(case))


PROMPT = AttentionCase("prompt", (600, 40), (600, 340), num_q_heads=4, num_kv_heads=2, invariant=True)
SHORT = PROMPT.but(name="short", q_lens=(130, 40), kv_lens=(130, 340))
PROMPTS = [
    PROMPT,
    SHORT.but(name="fp32", dtype=torch.float32, head_dim=40, page_size=24),
    SHORT.but(name="window sinks", window=(77, -1), sinks=True, num_q_heads=7, num_kv_heads=1),
    SHORT.but(name="softcap alibi fp8", kv_dtype=torch.float8_e4m3fn, scale_mode="tensor", softcap=9.0, alibi="head"),
]


@pytest.mark.parametrize("case", PROMPTS, ids=str)
def test_invariant_rows_do_not_depend_on_chunking(case, attend):
    laws.check_chunking(attend, build(case))


LONG = AttentionCase("long", (300, 64), (5000, 4160), num_q_heads=4, num_kv_heads=1, invariant=True)


@pytest.mark.full
@pytest.mark.parametrize(
    "case",
    [
        LONG,
        LONG.but(name="long fp32", dtype=torch.float32, head_dim=128),
        LONG.but(name="long fp16", dtype=torch.float16, head_dim=80),
        LONG.but(name="long int8", kv_dtype=torch.int8, scale_mode="head"),
        LONG.but(name="long wide group", num_q_heads=12),
        LONG.but(name="long windowed", window=(3000, -1), sinks=True),
        LONG.but(name="whole", q_lens=(2300,), kv_lens=(2300,), num_q_heads=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["cpu"], indirect=True)  # the reference goes row by row: many minutes a case
def test_invariant_rows_do_not_depend_on_chunking_full(case, attend):
    inputs = build(case)
    laws.check_chunking(attend, inputs)
    laws.check_neighbours(attend, inputs)

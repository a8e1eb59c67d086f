"""Attention of the CUDA backend in the emulator: a small set that touches every option, the laws, and the schedules.

The operator's own tests, all of them, run in `test_cuda_suite` (the long tier).
"""

from __future__ import annotations

import pytest
import torch

import chunkattn
from chunkattn.testing import BATCHES, AttentionCase, assert_state_close, build, laws

from . import cuda_backend
from .launch import Options
from .session import emulated

cuda_backend.skip_unless_available(cutlass=True)

ATTEND = laws.operator("cuda")
MIXED = AttentionCase("mixed", *BATCHES["mixed_with_empty"], num_q_heads=6, num_kv_heads=2, head_dim=64, padding=3)
E4M3 = torch.float8_e4m3fn
# Of one variant each: head dim 64 in bf16 and over an e4m3 cache, head dim 128 in bf16.
PLAIN = [
    MIXED,
    MIXED.but(name="window cap alibi", window=(31, -1), softcap=9.0, alibi="request", layout="fused", page_size=1),
    MIXED.but(name="full sinks odd pages", causal=False, window=(40, 9), sinks=True, alibi="head", layout="layers",
              q_layout="head_major", page_size=24),
    MIXED.but(name="tree in a padded tile", tree=True, head_dim=24, head_dim_v=40, q_layout="offset", layout="lanes"),
    MIXED.but(name="splits", num_splits=3, sinks=True, layout="hnd", page_size=64),
    MIXED.but(name="many heads", num_q_heads=71, num_kv_heads=1, page_size=528),
    MIXED.but(name="large cap", softcap=1e6),
    MIXED.but(name="narrow values", head_dim=32, head_dim_v=8, dtype=torch.float16),
    MIXED.but(name="negative scale", softmax_scale=-0.2),
    MIXED.but(name="invariant", q_lens=(33, 1, 5), kv_lens=(50, 2100, 40), invariant=True, num_q_heads=5,
              num_kv_heads=1),
]  # fmt: skip
WIDE = [
    AttentionCase("d128 mixed", *BATCHES["mixed"], num_q_heads=8, num_kv_heads=2, head_dim=128),
    AttentionCase("d128 splits", (1, 40), (700, 530), num_q_heads=8, num_kv_heads=1, head_dim=128, num_splits=4),
]
BYTES = [
    MIXED.but(name="e4m3 tensor", kv_dtype=E4M3, scale_mode="tensor"),
    MIXED.but(name="e4m3 token", kv_dtype=E4M3, scale_mode="token_head", layout="hnd", num_splits=2, sinks=True),
    MIXED.but(name="e4m3 narrow values", kv_dtype=E4M3, scale_mode="token_head", head_dim=16, num_splits=2),
    MIXED.but(name="e4m3 head padded", kv_dtype=E4M3, scale_mode="head", head_dim=40, softcap=5.0, layout="lanes"),
]
# Each row sees one key, whose weight carries a scale into an fp16 result.
FEW_KEYS = AttentionCase(
    "scales of few keys", (250,), (250,), window=(0, -1), head_dim=64, dtype=torch.float16, kv_dtype=E4M3,
    scale_mode="token_head",
)  # fmt: skip
# Of tiles of other widths, and of the other caches.
LARGE = [
    MIXED.but(name="d80 window cap", head_dim=80, window=(31, -1), softcap=9.0, layout="fused", page_size=24),
    MIXED.but(name="d96 narrower values", head_dim=96, head_dim_v=40, dtype=torch.float16, num_splits=2),
    AttentionCase("d192x128 mixed", *BATCHES["mixed"], num_q_heads=3, num_kv_heads=3, head_dim=192, head_dim_v=128),
    MIXED.but(name="d192x128 splits", head_dim=192, head_dim_v=128, num_splits=3, sinks=True, tree=True),
    MIXED.but(
        name="d256 splits", q_lens=(40, 1), kv_lens=(300, 300), head_dim=256, num_splits=2, alibi="head", page_size=64
    ),
    MIXED.but(name="d256 invariant", q_lens=(33, 1), kv_lens=(2100, 2100), head_dim=256, invariant=True),
    MIXED.but(name="d160 in d256", head_dim=160, layout="lanes", q_layout="offset"),
    MIXED.but(name="e4m3 d128 token", kv_dtype=E4M3, scale_mode="token_head", head_dim=128, num_splits=2),
    FEW_KEYS.but(name="d128 scales of few keys", head_dim=128),
    MIXED.but(name="e5m2 d128 head", kv_dtype=torch.float8_e5m2, scale_mode="head", head_dim=128, window=(31, -1)),
    MIXED.but(name="int8 d64 token", kv_dtype=torch.int8, scale_mode="token_head", layout="hnd", sinks=True),
    MIXED.but(name="int8 d96 tensor", kv_dtype=torch.int8, scale_mode="tensor", head_dim=88),
    MIXED.but(name="int8 d192x128 token", kv_dtype=torch.int8, scale_mode="token_head", head_dim=192, head_dim_v=128),
    MIXED.but(name="e5m2 d256 token", kv_dtype=torch.float8_e5m2, scale_mode="token_head", head_dim=256),
]
CASES = [*PLAIN, *WIDE, *BYTES, FEW_KEYS, *(pytest.param(case, marks=pytest.mark.full) for case in LARGE)]


def check(case: AttentionCase) -> None:
    inputs = build(case)
    out, lse = inputs.empty_state()
    ATTEND(inputs, out=out, lse=lse)
    assert_state_close((out, lse), inputs.expected(), context=f"{case}: ")


@pytest.mark.emulated(arch=80, seeds=3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_oracle(case: AttentionCase) -> None:
    check(case)


@pytest.mark.emulated(arch=80, seeds=1)
@pytest.mark.parametrize("batch", [name for name in BATCHES if name != "no_tokens"])
def test_every_batch(batch: str) -> None:
    check(AttentionCase(batch, *BATCHES[batch], num_q_heads=4, num_kv_heads=2, head_dim=64))


@pytest.mark.parametrize("case", [PLAIN[0], PLAIN[1], BYTES[1]], ids=str)
def test_bitwise_laws(case: AttentionCase) -> None:
    case = case.but(padding=0)
    with emulated(80):
        laws.check_repeatable(ATTEND, build(case))
        laws.check_page_order(ATTEND, case)
        laws.check_dead_memory(ATTEND, case)
        laws.check_outputs_overwritten(ATTEND, build(case))


@pytest.mark.parametrize(
    "case",
    [
        MIXED.but(q_lens=(40, 1), kv_lens=(150, 77), window=(50, -1), head_dim=40),
        MIXED.but(q_lens=(1,), kv_lens=(77,), kv_dtype=E4M3, scale_mode="token_head", head_dim=40),
    ],
    ids=["window", "e4m3"],
)
def test_how_rows_are_copied_changes_no_bit(case: AttentionCase) -> None:
    """Pages of 16 tokens are copied without looking rows up, those of 24 and of 1 row by row."""
    with emulated(80):
        first = ATTEND(build(case.but(page_size=16)))
        for page_size in (24, 1):
            laws.assert_same_state(ATTEND(build(case.but(page_size=page_size))), first, f"pages of {page_size}: ")


@pytest.mark.parametrize("seeds", [range(1, 6), pytest.param(range(6, 60), marks=pytest.mark.full)])
def test_the_schedule_changes_no_bit(seeds: range) -> None:
    """Whichever CTA takes an item, and whoever arrives last at a merge: the same bits."""
    inputs = build(PLAIN[4])
    with emulated(80):
        first = ATTEND(inputs)
    for seed in seeds:
        with emulated(80, Options.for_seed(seed)):
            laws.assert_same_state(ATTEND(inputs), first, f"seed {seed}: ")


@pytest.mark.parametrize("fill", [0x00, 0x4B, 0xFF])
def test_old_shared_memory_does_not_matter(fill: int) -> None:
    inputs = build(PLAIN[0])
    with emulated(80):
        first = ATTEND(inputs)
    with emulated(80, Options(shared_fill=fill, register_fill=fill)):
        laws.assert_same_state(ATTEND(inputs), first, f"shared memory holding {fill:#x}: ")


@pytest.mark.parametrize("multiprocessors", [1, 3, 16])
def test_any_number_of_multiprocessors(multiprocessors: int) -> None:
    inputs = build(PLAIN[0])
    with emulated(80, multiprocessors=multiprocessors):
        assert_state_close(ATTEND(inputs), inputs.expected())


def test_invariant_rows_do_not_depend_on_chunking_or_neighbours() -> None:
    """One request walks two segments of 2,048 keys in one item; cut into pieces it has the same bits."""
    inputs = build(PLAIN[-1].but(q_lens=(40, 9), kv_lens=(40, 2200), padding=0))
    with emulated(80):
        whole = ATTEND(inputs)
        assert_state_close(whole, inputs.expected())
        cut = ATTEND(inputs.recut([(0, 0, 7), (0, 7, 40), (1, 0, 1), (1, 1, 9)]))
        laws.assert_same_state(cut, whole, "cut into chunks: ")
        alone = ATTEND(inputs.recut([(1, 8, 9)], padding=3))
    laws.assert_same_state((alone[0][:1], alone[1][:1]), (whole[0][-1:], whole[1][-1:]), "alone, padded: ")


def test_a_plan_for_other_facts_stops_the_kernel() -> None:
    """On the device nothing can be raised; a trap is better than rows that went astray."""
    case = AttentionCase("plan", (5, 1), (300, 40), head_dim=64)
    inputs = build(case)
    with emulated(80, strict=False) as session:
        plan = chunkattn.plan(
            inputs.cu_seqlens_q, inputs.seq_lens, num_q_heads=4, num_kv_heads=2, head_dim=64, page_size=16,
            dtype=case.dtype, window=(100, -1), backend="cuda",
        )  # fmt: skip
        chunkattn.attention(*inputs.batch(), plan=plan)
    assert "trap" in {finding.kind for launch in session.launches for finding in launch.all_findings}


def test_one_plan_serves_every_layer() -> None:
    case = AttentionCase("plan", (5, 1, 1), (300, 1500, 40), num_q_heads=8, num_kv_heads=2)
    inputs = build(case)
    with emulated(80):
        plan = chunkattn.plan(
            inputs.cu_seqlens_q, inputs.seq_lens, num_q_heads=8, num_kv_heads=2, head_dim=64, page_size=16,
            dtype=case.dtype, backend="cuda",
        )  # fmt: skip
        for seed in (1, 2):
            layer = build(case.but(seed=seed))
            state = chunkattn.attention(*layer.batch(), plan=plan, return_lse=True)
            assert_state_close(state, layer.expected())

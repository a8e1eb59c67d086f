"""The attention kernel for wgmma and tensor copies in the emulator: every option, the laws, pages of every kind."""

from __future__ import annotations

import pytest
import torch

import chunkattn
from chunkattn.testing import BATCHES, AttentionCase, assert_state_close, build, laws

from . import cuda_backend
from .launch import Options
from .session import Session, emulated

cuda_backend.skip_unless_available(cutlass=True)

ATTEND = laws.operator("cuda")
MIXED = AttentionCase("mixed", *BATCHES["mixed_with_empty"], num_q_heads=6, num_kv_heads=2, head_dim=128, padding=3)
# Blocks of 128 keys that are wholly seen come as boxes; every case has some, and some at an edge.
LONG = AttentionCase("long", (70, 1, 9), (500, 530, 300), num_q_heads=8, num_kv_heads=2, head_dim=128)
INVARIANT = MIXED.but(
    name="invariant", q_lens=(33, 1, 5), kv_lens=(50, 2100, 40), invariant=True, num_q_heads=5, num_kv_heads=1
)
CASES = [
    MIXED,
    LONG,
    LONG.but(name="pages of 8", page_size=8),
    LONG.but(name="pages of 24", page_size=24),
    LONG.but(name="pages of 528", page_size=528),
    LONG.but(name="odd pages", page_size=5, layout="hnd"),
    LONG.but(name="padded rows", layout="lanes", q_layout="offset"),
    LONG.but(name="window cap alibi", window=(200, -1), softcap=9.0, alibi="request", layout="fused"),
    LONG.but(name="full sinks", causal=False, window=(250, 9), sinks=True, alibi="head", layout="layers",
             q_layout="head_major", page_size=64),
    LONG.but(name="tree in a padded tile", tree=True, head_dim=72, head_dim_v=104, q_layout="offset"),
    LONG.but(name="splits", num_splits=3, sinks=True, layout="hnd", page_size=64),
    LONG.but(name="many heads", num_q_heads=71, num_kv_heads=1),
    LONG.but(name="negative scale", softmax_scale=-0.2),
    LONG.but(name="fp16", dtype=torch.float16),
    LONG.but(name="d64 fp16 cap alibi", head_dim=64, dtype=torch.float16, softcap=9.0, alibi="request"),
    LONG.but(name="d64", head_dim=64, num_splits=2),
    LONG.but(name="d64 odd pages", head_dim=40, page_size=5, sinks=True, window=(300, -1)),
    LONG.but(name="d64 invariant", q_lens=(33, 1, 5), kv_lens=(50, 2100, 40), head_dim=64, invariant=True),
    INVARIANT,
    LONG.but(name="d192", head_dim=192, head_dim_v=128, num_splits=2, page_size=64),
    MIXED.but(name="d192 mixed", head_dim=192, head_dim_v=128, sinks=True),
    LONG.but(name="d256", head_dim=256, num_splits=2, page_size=64),
    MIXED.but(name="d256 mixed", head_dim=256, sinks=True),
]  # fmt: skip
WIDE = LONG.but(name="wide keys", head_dim=192, head_dim_v=128)
WIDEST = LONG.but(name="widest heads", head_dim=256)
WIDE_CASES = [
    WIDE.but(name="d192 odd pages", head_dim=160, page_size=5, layout="hnd"),
    WIDE.but(name="d192 padded rows", head_dim=136, head_dim_v=72, layout="lanes", q_layout="offset"),
    WIDE.but(name="d192 window cap alibi", window=(200, -1), softcap=9.0, alibi="request", layout="fused"),
    WIDE.but(name="d192 tree fp16", tree=True, dtype=torch.float16, page_size=24),
    WIDE.but(name="d192 decodes", q_lens=(1, 1, 1), kv_lens=(500, 1, 129), num_splits=3),
    WIDE.but(name="d192 invariant", q_lens=(33, 1, 5), kv_lens=(50, 2100, 40), invariant=True),
    WIDEST.but(name="d256 odd pages", page_size=5, layout="hnd"),
    WIDEST.but(name="d256 pages of 24", head_dim=200, page_size=24, layout="lanes", q_layout="offset"),
    WIDEST.but(name="d256 window cap alibi", window=(200, -1), softcap=9.0, alibi="request", layout="fused"),
    WIDEST.but(name="d256 tree fp16", tree=True, dtype=torch.float16, page_size=8),
    # Groups of warps have blocks of 64 keys in turn: one block, two, three and many.
    WIDEST.but(name="d256 decodes", q_lens=(1,) * 6, kv_lens=(1, 64, 65, 129, 200, 900), num_splits=1, sinks=True),
    WIDEST.but(name="d256 split decodes", q_lens=(1, 1, 1), kv_lens=(500, 1, 129), num_splits=3),
    WIDEST.but(name="d256 windowed decodes", q_lens=(1, 2, 1), kv_lens=(500, 300, 129), window=(70, -1)),
    WIDEST.but(name="d256 invariant", q_lens=(33, 1, 5), kv_lens=(50, 2100, 40), invariant=True),
]

# 8-bit caches are widened on their way into the same tiles.
FP8 = LONG.but(kv_dtype=torch.float8_e4m3fn, scale_mode="token_head")
FP8_MIXED = MIXED.but(name="fp8 mixed", kv_dtype=torch.float8_e4m3fn, scale_mode="token_head")
FAST_FP8 = [
    FP8.but(name="fp8"),
    FP8_MIXED.but(name="fp8 d64", scale_mode="head", head_dim=64),
]
# Scales of tokens would need the sm_80 kernel.
FP16_FP8 = LONG.but(dtype=torch.float16, kv_dtype=torch.float8_e4m3fn, scale_mode="head")
FP16_FP8_MIXED = MIXED.but(dtype=torch.float16, kv_dtype=torch.float8_e4m3fn, scale_mode="tensor")
FAST_OTHERS = [
    FP8.but(name="e5m2", kv_dtype=torch.float8_e5m2),
    FP8_MIXED.but(name="e5m2 d64", kv_dtype=torch.float8_e5m2, head_dim=64),
    FP8.but(name="int8 d64", kv_dtype=torch.int8, head_dim=64),
    FP8_MIXED.but(name="int8", kv_dtype=torch.int8, scale_mode="head"),
    FP16_FP8.but(name="fp16 fp8"),
    FP16_FP8_MIXED.but(name="fp16 fp8 d64", head_dim=64),
]
FP8_CASES = [
    FP8_MIXED,
    FP8_MIXED.but(name="fp8 no scale", scale_mode="none"),
    FP8.but(name="fp8 pages of 24", scale_mode="tensor", page_size=24),
    FP8.but(name="fp8 odd pages", page_size=5, layout="hnd"),
    FP8.but(name="fp8 padded rows", layout="lanes", q_layout="offset"),
    FP8.but(name="fp8 window cap alibi", window=(200, -1), softcap=9.0, alibi="request", layout="fused"),
    FP8.but(name="fp8 tree in a padded tile", tree=True, head_dim=72, head_dim_v=104, q_layout="offset"),
    FP8.but(name="fp8 splits", num_splits=3, sinks=True, page_size=64, scale_mode="head"),
    FP8.but(name="fp8 negative scale", softmax_scale=-0.2, scale_mode="tensor"),
    FP8.but(name="fp8 d64 odd pages", head_dim=40, page_size=5, sinks=True, window=(300, -1)),
    FP8_MIXED.but(name="fp8 invariant", q_lens=(33, 1, 5), kv_lens=(50, 2100, 40), invariant=True, num_q_heads=5,
                  num_kv_heads=1),
    FP8_MIXED.but(name="fp8 d64 invariant", q_lens=(33, 1, 5), kv_lens=(50, 2100, 40), invariant=True, head_dim=64),
]  # fmt: skip
FP16_CASES = [
    case.but(name=case.name.replace("fp8", "fp16 fp8"), dtype=torch.float16, scale_mode="head") for case in FP8_CASES
]
OTHER_CASES = [
    case.but(name=case.name.replace("fp8", name), kv_dtype=dtype)
    for name, dtype in (("e5m2", torch.float8_e5m2), ("int8", torch.int8))
    for case in FP8_CASES
]


def values_of(head_dim: int) -> int:
    return 128 if head_dim == 192 else head_dim


def kernels(session: Session) -> set[str]:
    return {launch.kernel for launch in session.launches if "attention_kernel" in launch.kernel}


def check(case: AttentionCase, seed: int = 0) -> None:
    inputs = build(case)
    out, lse = inputs.empty_state()
    with emulated(90, Options.for_seed(seed)) as session:
        ATTEND(inputs, out=out, lse=lse)
    assert all("sm90" in kernel for kernel in kernels(session)), "another variant served"
    assert_state_close((out, lse), inputs.expected(), context=f"{case}, seed {seed}: ")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full), pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_oracle(case: AttentionCase, seed: int) -> None:
    check(case, seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", WIDE_CASES, ids=str)
def test_wide_heads(case: AttentionCase, seed: int) -> None:
    check(case, seed)


@pytest.mark.parametrize("case", FAST_FP8 + FAST_OTHERS, ids=str)
def test_widened_caches(case: AttentionCase) -> None:
    check(case)


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", FAST_FP8 + FAST_OTHERS + FP8_CASES + FP16_CASES + OTHER_CASES, ids=str)
def test_widened_caches_in_every_schedule(case: AttentionCase, seed: int) -> None:
    check(case, seed)


@pytest.mark.full
@pytest.mark.parametrize("batch", [name for name in BATCHES if name != "no_tokens"])
def test_widened_caches_in_every_batch(batch: str) -> None:
    check(FP8_MIXED.but(name=batch, q_lens=BATCHES[batch][0], kv_lens=BATCHES[batch][1]))


def test_scales_of_tokens_beside_fp16_need_the_older_kernel() -> None:
    """Weights that carry them are multiplied in two parts there."""
    inputs = build(FP16_FP8.but(name="tokens", scale_mode="token_head", q_lens=(20, 1), kv_lens=(40, 140)))
    with emulated(90) as session:
        state = ATTEND(inputs)
    assert all("sm80" in kernel for kernel in kernels(session))
    assert_state_close(state, inputs.expected())


@pytest.mark.parametrize("factor", [2.0**100, pytest.param(2.0**-100, marks=pytest.mark.full)])
def test_queries_of_any_magnitude(factor: float) -> None:
    """bf16 queries that fp16 could not hold, beside others that it can: powers of two change no bit."""
    inputs = build(AttentionCase("queries", (20, 1), (30, 200), head_dim=64, kv_dtype=torch.float8_e4m3fn))
    with emulated(90):
        plain = ATTEND(inputs)
        inputs.q[:, ::2] *= factor
        for heads, scale in ((slice(0, None, 2), 0.125 / factor), (slice(1, None, 2), 0.125)):
            scaled = chunkattn.attention(*inputs.batch(), softmax_scale=scale, return_lse=True, backend="cuda")
            for before, after in zip(plain, scaled, strict=True):
                assert torch.equal(before[:, heads], after[:, heads])


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full), pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("head_dim", [128, 192, 256])
def test_decodes_write_where_a_prefill_has_read(head_dim: int, seed: int) -> None:
    """Zeros for hidden values and, where keys are wide, states, in rows that wgmma of the other group read before and
    that cp.async fills again; all items by one CTA."""
    wide = AttentionCase("after a prefill", (130, 1, 3, 3, 2), (154, 200, 49, 140, 60), num_q_heads=4, num_kv_heads=2,
                         head_dim=head_dim, head_dim_v=values_of(head_dim), page_size=5, num_splits=1)  # fmt: skip
    inputs = build(wide)
    for request, kv_len in enumerate(wide.kv_lens):
        if wide.q_lens[request] > 1:
            last = kv_len - 1
            inputs.v_cache[inputs.block_table[request, last // 5], last % 5, :, 3] = float("nan")
    out, lse = inputs.empty_state()
    with emulated(90, Options.for_seed(seed), multiprocessors=1):
        ATTEND(inputs, out=out, lse=lse)
    assert_state_close((out, lse), inputs.expected())


def test_bits_of_a_decode_do_not_depend_on_the_stage_it_begins_in() -> None:
    """Where teams of warps have blocks in turn: one CTA runs all items, in both orders."""
    case = AttentionCase("stages", (1,) * 7, (190, 64, 129, 200, 300, 65, 500), num_q_heads=16, num_kv_heads=1,
                         head_dim=256, num_splits=1)  # fmt: skip
    inputs = build(case)
    with emulated(90, multiprocessors=1):
        forwards = ATTEND(inputs)
        out, lse = ATTEND(inputs.recut([(request, 0, 1) for request in reversed(range(7))]))
    laws.assert_same_state((out.flip(0), lse.flip(0)), forwards, "backwards: ")


@pytest.mark.parametrize("batch", [name for name in BATCHES if name != "no_tokens"])
def test_every_batch(batch: str) -> None:
    check(AttentionCase(batch, *BATCHES[batch], num_q_heads=4, num_kv_heads=2, head_dim=128))


@pytest.mark.parametrize(
    "case",
    [
        MIXED,
        CASES[7],
        *(
            pytest.param(case, marks=pytest.mark.full)
            for case in (FP8_MIXED, FP8_CASES[5], WIDE, WIDEST, *FAST_OTHERS[2:])
        ),
    ],
    ids=str,
)
def test_bitwise_laws(case: AttentionCase) -> None:
    case = case.but(padding=0)
    with emulated(90):
        laws.check_repeatable(ATTEND, build(case))
        laws.check_page_order(ATTEND, case)
        laws.check_dead_memory(ATTEND, case)
        laws.check_outputs_overwritten(ATTEND, build(case))


@pytest.mark.parametrize(
    ("case", "seeds"),
    [
        (LONG, range(1, 6)),
        (WIDEST, range(1, 4)),
        *(pytest.param(case, range(6, 60), marks=pytest.mark.full) for case in (LONG, WIDEST)),
    ],
    ids=str,
)
def test_the_schedule_changes_no_bit(case: AttentionCase, seeds: range) -> None:
    """Whichever CTA takes an item, and whoever arrives last at a merge: the same bits."""
    inputs = build(case.but(num_splits=3))
    with emulated(90):
        first = ATTEND(inputs)
    for seed in seeds:
        with emulated(90, Options.for_seed(seed)):
            laws.assert_same_state(ATTEND(inputs), first, f"seed {seed}: ")


@pytest.mark.parametrize("fill", [0x00, 0x4B, 0xFF])
@pytest.mark.parametrize(
    "case", [MIXED, *(pytest.param(case, marks=pytest.mark.full) for case in (FP8_MIXED, WIDE, WIDEST))], ids=str
)
def test_old_shared_memory_does_not_matter(fill: int, case: AttentionCase) -> None:
    inputs = build(case)
    with emulated(90):
        first = ATTEND(inputs)
    with emulated(90, Options(shared_fill=fill, register_fill=fill)):
        laws.assert_same_state(ATTEND(inputs), first, f"shared memory holding {fill:#x}: ")


@pytest.mark.parametrize("multiprocessors", [1, 3, 16])
def test_any_number_of_multiprocessors(multiprocessors: int) -> None:
    inputs = build(MIXED)
    with emulated(90, multiprocessors=multiprocessors):
        assert_state_close(ATTEND(inputs), inputs.expected())


@pytest.mark.parametrize("head_dim", [128, *(pytest.param(wide, marks=pytest.mark.full) for wide in (192, 256))])
def test_invariant_rows_do_not_depend_on_chunking_or_neighbours(head_dim: int) -> None:
    """One request walks two segments of 2,048 keys in one item; cut into pieces it has the same bits."""
    case = INVARIANT.but(q_lens=(40, 9), kv_lens=(40, 2200), padding=0, head_dim=head_dim,
                         head_dim_v=values_of(head_dim))  # fmt: skip
    inputs = build(case)
    with emulated(90):
        whole = ATTEND(inputs)
        assert_state_close(whole, inputs.expected())
        cut = ATTEND(inputs.recut([(0, 0, 7), (0, 7, 40), (1, 0, 1), (1, 1, 9)]))
        laws.assert_same_state(cut, whole, "cut into chunks: ")
        alone = ATTEND(inputs.recut([(1, 8, 9)], padding=3))
    laws.assert_same_state((alone[0][:1], alone[1][:1]), (whole[0][-1:], whole[1][-1:]), "alone, padded: ")


@pytest.mark.parametrize("options", [{}, {"softcap": 9.0, "alibi": "head"}], ids=["plain", "cap alibi"])
def test_rows_do_not_depend_on_who_sees_a_block_whole(options: dict[str, object]) -> None:
    """The block of keys from 256 on is at the edge of a tile that begins before its end, and seen whole by rows of
    their own tile: two ways through the loop."""
    case = AttentionCase("edges", (70,), (420,), num_q_heads=5, num_kv_heads=1, head_dim=64, invariant=True)
    inputs = build(case.but(**options))
    with emulated(90):
        whole = ATTEND(inputs)
        assert_state_close(whole, inputs.expected())
        cut = ATTEND(inputs.recut([(0, 0, 34), (0, 34, 70)]))
    laws.assert_same_state(cut, whole, "cut where a block ends: ")


def test_a_plan_for_other_facts_stops_the_kernel() -> None:
    """On the device nothing can be raised; a trap is better than rows that went astray."""
    case = AttentionCase("plan", (5, 1), (300, 40), head_dim=128)
    inputs = build(case)
    with emulated(90, strict=False) as session:
        plan = chunkattn.plan(
            inputs.cu_seqlens_q, inputs.seq_lens, num_q_heads=4, num_kv_heads=2, head_dim=128, page_size=16,
            dtype=case.dtype, window=(100, -1), backend="cuda",
        )  # fmt: skip
        chunkattn.attention(*inputs.batch(), plan=plan)
    assert "trap" in {finding.kind for launch in session.launches for finding in launch.all_findings}


def test_one_plan_serves_every_layer() -> None:
    case = AttentionCase("plan", (5, 1, 1), (300, 1500, 40), num_q_heads=8, num_kv_heads=2, head_dim=128)
    inputs = build(case)
    with emulated(90):
        plan = chunkattn.plan(
            inputs.cu_seqlens_q, inputs.seq_lens, num_q_heads=8, num_kv_heads=2, head_dim=128, page_size=16,
            dtype=case.dtype, backend="cuda",
        )  # fmt: skip
        for seed in (1, 2):
            layer = build(case.but(seed=seed))
            state = chunkattn.attention(*layer.batch(), plan=plan, return_lse=True)
            assert_state_close(state, layer.expected())

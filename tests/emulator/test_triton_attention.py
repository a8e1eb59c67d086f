"""Attention of the Triton backend in the emulator: a small set that touches every option, the laws, and replay.

The operator's own tests, all of them, run in `test_triton_suite` (the long tier).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import chunkattn
from chunkattn.testing import BATCHES, AttentionCase, assert_state_close, build, laws
from chunkattn.testing.inputs import AttentionInputs

from . import native, triton_driver
from .launch import UNCHECKED, Options
from .session import Session, emulated

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if not triton_driver.available():
    pytest.skip("triton is not installed", allow_module_level=True)

ATTEND = laws.operator("triton")
MIXED = AttentionCase("mixed", *BATCHES["mixed_with_empty"], num_q_heads=6, num_kv_heads=2, head_dim=32, padding=3)
# Together: all dtypes, storages, granularities, layouts, masks and modifiers, pages of part of a tile, of whole tiles
# and of odd sizes, planned and given splits.
CASES = [
    MIXED,
    MIXED.but(name="fp16 e4m3 token", dtype=torch.float16, kv_dtype=torch.float8_e4m3fn, scale_mode="token_head",
              layout="hnd", page_size=64, num_splits=3, sinks=True),
    MIXED.but(name="e5m2 head window", kv_dtype=torch.float8_e5m2, scale_mode="head", window=(31, -1), softcap=9.0,
              alibi="request", layout="fused", page_size=1),
    MIXED.but(name="int8 tree", kv_dtype=torch.int8, scale_mode="tensor", tree=True, head_dim=24, head_dim_v=40,
              page_size=24, layout="lanes", q_layout="offset"),
    MIXED.but(name="fp32 full", dtype=torch.float32, causal=False, window=(40, 9), sinks=True, alibi="head",
              head_dim=16, head_dim_v=32, layout="layers", q_layout="head_major", page_size=128),
    MIXED.but(name="large cap", softcap=1e6),
    MIXED.but(name="narrow values", head_dim_v=8, dtype=torch.float16),
    MIXED.but(name="narrow values int8 token", head_dim_v=16, kv_dtype=torch.int8, scale_mode="token_head"),
    MIXED.but(name="invariant", q_lens=(33, 1, 5), kv_lens=(50, 2100, 40), invariant=True, num_q_heads=5,
              num_kv_heads=1),
]  # fmt: skip


def check(case: AttentionCase) -> None:
    inputs = build(case)
    out, lse = inputs.empty_state()
    ATTEND(inputs, out=out, lse=lse)
    assert_state_close((out, lse), inputs.expected(), context=f"{case}: ")


@pytest.mark.emulated(arch=80, seeds=3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_oracle_sm80(case: AttentionCase) -> None:
    check(case)


@pytest.mark.emulated(arch=90, seeds=3)
@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_against_the_oracle_sm90(case: AttentionCase) -> None:
    check(case)


@pytest.mark.full
@pytest.mark.emulated(arch=90, seeds=3)
@pytest.mark.parametrize("case", CASES[2:], ids=str)
def test_against_the_oracle_sm90_full(case: AttentionCase) -> None:
    check(case)


@pytest.mark.parametrize("case", [CASES[0], CASES[1]], ids=str)
def test_bitwise_laws(case: AttentionCase) -> None:
    case = case.but(padding=0)
    with emulated(80):
        laws.check_repeatable(ATTEND, build(case))
        laws.check_page_order(ATTEND, case)
        laws.check_dead_memory(ATTEND, case)
        laws.check_outputs_overwritten(ATTEND, build(case))


@pytest.mark.parametrize("seeds", [range(1, 6), pytest.param(range(6, 60), marks=pytest.mark.full)])
def test_the_schedule_changes_no_bit(seeds: range) -> None:
    """Whichever program takes an item, and in whatever order: the same bits, splits or not."""
    inputs = build(CASES[1])
    with emulated(80):
        first = ATTEND(inputs)
    for seed in seeds:
        with emulated(80, Options.for_seed(seed)):
            laws.assert_same_state(ATTEND(inputs), first, f"seed {seed}: ")


def test_invariant_rows_do_not_depend_on_chunking_or_neighbours() -> None:
    case = CASES[-1].but(q_lens=(40, 9), kv_lens=(40, 2200), padding=0)
    with emulated(80):
        laws.check_chunking(ATTEND, build(case), chunk_sizes=(1, 7, 64))
        laws.check_neighbours(ATTEND, build(case), paddings=(0, 37))


@contextlib.contextmanager
def no_host_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever would make the host wait for a GPU is an error inside."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a tensor was read on the host")

    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "cpu", "numpy", "__int__", "__bool__", "__float__", "__index__", "nonzero"):
            patch.setattr(torch.Tensor, name, refuse)
        yield


class Graph:
    """A call's launches, run again with the very same arguments; what a CUDA graph replays."""

    def __init__(self, session: Session, inputs: AttentionInputs, monkeypatch: pytest.MonkeyPatch):
        self.session, self.inputs = session, inputs
        self.launches: list[tuple[Any, ...]] = []
        self.zeroed: list[torch.Tensor] = []
        self.out, self.lse = inputs.empty_state()
        launch, zeros = session.launch, torch.zeros

        def recorded(*arguments: Any, **options: Any) -> Any:
            self.launches.append((arguments, options))
            return launch(*arguments, **options)

        def recorded_zeros(*arguments: Any, **options: Any) -> torch.Tensor:
            self.zeroed.append(zeros(*arguments, **options))  # a fill kernel, which a graph holds too
            return self.zeroed[-1]

        with monkeypatch.context() as patch, no_host_reads(monkeypatch):
            patch.setattr(session, "launch", recorded)
            patch.setattr(torch, "zeros", recorded_zeros)
            ATTEND(inputs, out=self.out, lse=self.lse)

    def replay(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.out.fill_(math.nan)
        self.lse.fill_(math.nan)
        for tensor in self.zeroed:
            tensor.zero_()
        for arguments, options in self.launches:
            self.session.launch(*arguments, **options)
        return self.out, self.lse


def set_mix(inputs: AttentionInputs, q_lens: list[int], kv_lens: list[int]) -> None:
    """Puts other lengths into the same tensors."""
    inputs.cu_seqlens_q.copy_(torch.tensor([0, *q_lens]).cumsum(0))
    inputs.seq_lens.copy_(torch.tensor(kv_lens))


def random_mix(rng: random.Random, requests: int, most_tokens: int, most_keys: int) -> tuple[list[int], list[int]]:
    """Lengths of requests that fit; many have no tokens, no keys, or fewer keys than tokens."""
    q_lens, left = [], most_tokens
    for _ in range(requests):
        q_lens.append(min(rng.choice([0, 0, 1, 1, 2, 7, rng.randint(0, 40)]), left))
        left -= q_lens[-1]
    return q_lens, [rng.choice([0, q, q + 1, rng.randint(0, most_keys)]) for q in q_lens]


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.full)])
@pytest.mark.parametrize("arch", [80, 90])
def test_replay_serves_every_mix(arch: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured once; then only the contents of tensors change: any mix that fits the shapes, empty requests too. The
    bits are those of a call made for the mix."""
    shape = 6, 48, 600
    requests, most_tokens, most_keys = shape
    case = AttentionCase("capture", (most_tokens // requests,) * requests, (most_keys,) * requests, num_q_heads=4,
                         num_kv_heads=1, head_dim=32)  # fmt: skip
    inputs, rng = build(case), random.Random(count)
    mixes = [([0] * requests, [0] * requests), *(random_mix(rng, *shape) for _ in range(count - 1))]
    with emulated(arch) as session:
        graph = Graph(session, inputs, monkeypatch)
        for index, (q_lens, kv_lens) in enumerate(mixes):
            set_mix(inputs, q_lens, kv_lens)
            out, lse = graph.replay()
            with emulated(arch, UNCHECKED):
                laws.assert_same_state(ATTEND(inputs), (out, lse), f"eager {q_lens} {kv_lens}: ")
            if index % 20 == 0:
                assert_state_close((out, lse), inputs.expected(), context=f"{q_lens} {kv_lens}: ")


def test_a_call_reads_nothing_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = build(MIXED)
    out, lse = inputs.empty_state()
    with emulated(80), no_host_reads(monkeypatch):
        ATTEND(inputs, out=out, lse=lse)
    assert_state_close((out, lse), inputs.expected())


def plan_of(inputs: AttentionInputs, **options: Any) -> chunkattn.Plan:
    case = inputs.case
    return chunkattn.plan(
        inputs.cu_seqlens_q,
        inputs.seq_lens,
        num_q_heads=case.num_q_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        page_size=case.page_size,
        dtype=case.dtype,
        backend="triton",
        **options,
    )


def test_a_plan_is_compared_on_the_device() -> None:
    """No host can look into it, so a stale plan or a workspace too small for it gives NaN in every row, not nonsense
    in some, and nothing is written past the workspace."""
    inputs = build(MIXED.but(num_splits=None))
    with emulated(80):
        plan = plan_of(inputs)
        state = chunkattn.attention(*inputs.batch(), return_lse=True, plan=plan)
        assert_state_close(state, inputs.expected())
        exact = torch.empty(plan.workspace_bytes, dtype=torch.uint8)
        state = chunkattn.attention(*inputs.batch(), return_lse=True, plan=plan, workspace=exact)
        assert_state_close(state, inputs.expected())
        wrong = [
            chunkattn.attention(*inputs.batch(), return_lse=True, plan=plan_of(inputs, causal=False)),
            chunkattn.attention(*inputs.batch(), return_lse=True, plan=plan_of(inputs, window=(5, -1))),
            chunkattn.attention(*inputs.batch(), return_lse=True, plan=plan, workspace=exact[:-1]),
        ]
        inputs.cu_seqlens_q[-1] += 1  # one of the padding tokens
        wrong.append(chunkattn.attention(*inputs.batch(), return_lse=True, plan=plan))
    for out, lse in wrong:
        assert out.isnan().all()
        assert lse.isnan().all()


def test_two_plans_at_a_time_do_not_disturb_each_other() -> None:
    """Both made before either is used, and used in the other order."""
    one, other = build(MIXED), build(MIXED.but(kv_lens=tuple(length + 70 for length in MIXED.kv_lens), seed=1))
    with emulated(80):
        plans = plan_of(one), plan_of(other)
        for inputs, plan in ((other, plans[1]), (one, plans[0])):
            state = chunkattn.attention(*inputs.batch(), return_lse=True, plan=plan)
            assert_state_close(state, inputs.expected())


def test_a_workspace_too_small_for_the_bound_is_refused() -> None:
    case = MIXED.but(num_splits=4)
    inputs = build(case)
    spec = chunkattn.AttentionSpec("cpu", case.dtype, case.dtype, 6, 2, 32, 32, 16)
    with emulated(80):
        size = chunkattn.workspace_bytes(
            spec,
            max_tokens=inputs.q.shape[0],
            max_seq_len=inputs.block_table.shape[1] * 16,
            num_splits=4,
            backend="triton",
        )
        laws.check_workspace_contents(ATTEND, inputs, size)
        with pytest.raises(ValueError, match="workspace: expected at least"):
            ATTEND(inputs, workspace=torch.empty(size - 1, dtype=torch.uint8))
        with pytest.raises(ValueError, match="workspace: expected a data pointer aligned"):
            ATTEND(inputs, workspace=torch.empty(size + 1, dtype=torch.uint8)[1:])


@pytest.mark.parametrize("arch", [80, 90])
def test_tokens_beyond_32_bits_of_offset(arch: int) -> None:
    """q, out and lse whose third token lies past 2^31 elements, in memory that is reserved but hardly touched."""
    case = MIXED.but(q_lens=(1, 2), kv_lens=(20, 9), padding=0)
    inputs, stride = build(case), 1_100_000_000

    def spread(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        inner = math.prod(shape[1:])
        storage = torch.empty(stride * (shape[0] - 1) + inner, dtype=dtype)
        return storage.as_strided(shape, (stride, *torch.empty(shape[1:]).stride()))

    q = spread(tuple(inputs.q.shape), case.dtype).copy_(inputs.q)
    out, lse = spread((3, 6, 32), case.dtype), spread((3, 6), torch.float32)
    assert q.stride(0) * 2 > 2**31
    with emulated(arch):
        ATTEND(dataclasses.replace(inputs, q=q), out=out, lse=lse)
    assert_state_close((out, lse), inputs.expected())


def test_outside_the_emulator_cpu_tensors_are_refused() -> None:
    with pytest.raises(chunkattn.UnsupportedError, match="triton: tensors are on cpu"):
        ATTEND(build(MIXED))

"""KV splits, workspaces and invariant mode: cases drawn from public bug reports (d25, d26, d31)."""

from __future__ import annotations

import pytest
import torch

import chunkattn
from chunkattn.testing import AttentionCase, assert_bitwise_equal, assert_state_close, build, uniform_probe

SPLITS = (None, 0, 1, 2, 3, 7, 16, 32, 128)


@pytest.mark.parametrize("kv_len", [1, 17, 70, 777, 4096])
def test_d25_every_number_of_splits_gives_the_same(kv_len, attend_with):
    case = AttentionCase("d25", (1,), (kv_len,), num_q_heads=16, num_kv_heads=8, head_dim=128)
    for contents in (None, uniform_probe(case, unit=1 / 64)):
        inputs = build(case, contents)
        expected = inputs.expected()
        for num_splits in SPLITS:
            state = attend_with(inputs, num_splits=num_splits)
            assert_state_close(state, expected, context=f"{num_splits} splits of {kv_len}: ")


@pytest.mark.parametrize(
    "options", [{}, {"head_dim": 256, "num_q_heads": 4, "num_kv_heads": 2}, {"dtype": torch.float32}]
)
def test_d25_splits_of_a_ragged_mix(options, attend_with):
    case = AttentionCase("d25 mix", (1, 3, 17), (4096, 70, 17), num_q_heads=16, num_kv_heads=8, head_dim=128).but(
        **options
    )
    inputs = build(case)
    expected = inputs.expected()
    for num_splits in (8, None):
        for transposed in (False, True):
            out, lse = inputs.empty_state()
            if transposed:
                out = out.transpose(0, 1).contiguous().transpose(0, 1)
                lse = lse.T.contiguous().T
            attend_with(inputs, num_splits=num_splits, out=out, lse=lse)
            assert_state_close((out, lse), expected)


def check_guarded_workspace(case, attend_with, size):
    inputs, guard = build(case), 4096
    buffer = torch.full((size + 2 * guard,), 0xA5, dtype=torch.uint8)
    state = attend_with(inputs, workspace=buffer[guard : guard + size])
    assert (buffer[:guard] == 0xA5).all()
    assert (buffer[guard + size :] == 0xA5).all()
    assert_state_close(state, inputs.expected())


D26 = AttentionCase("d26", (16, 1, 3), (2048, 3000, 700), num_q_heads=16, num_kv_heads=4, head_dim=128, num_splits=4)


def test_d26_the_workspace_is_exactly_as_large_as_reported(attend_with, workspace_size):
    check_guarded_workspace(D26, attend_with, workspace_size(build(D26)))


@pytest.mark.full
def test_d26_the_workspace_is_exactly_as_large_as_reported_full(attend_with, workspace_size):
    case = D26.but(q_lens=(64, 64, 64), kv_lens=(16384, 16384, 16384))
    check_guarded_workspace(case, attend_with, workspace_size(build(case)))


def test_d26_one_byte_less_is_refused_before_anything_is_written(attend_with, backend):
    case = AttentionCase("d26", (3,), (3000,), num_q_heads=16, num_kv_heads=4, num_splits=4)
    inputs = build(case)
    plan = chunkattn.plan(
        inputs.cu_seqlens_q, inputs.seq_lens, num_q_heads=16, num_kv_heads=4, head_dim=64, page_size=16,
        dtype=case.dtype, num_splits=4, backend=backend,
    )  # fmt: skip
    exact = torch.empty(plan.workspace_bytes, dtype=torch.uint8)
    assert_state_close(attend_with(inputs, plan=plan, workspace=exact, backend=None), inputs.expected())
    if plan.workspace_bytes == 0:
        return  # this backend keeps no partial states
    out, lse = inputs.empty_state(7.0)
    with pytest.raises(ValueError, match="workspace: expected"):
        attend_with(inputs, plan=plan, workspace=exact[:-1], out=out, lse=lse, backend=None)
    assert (out == 7.0).all()
    assert (lse == 7.0).all()


def test_a_plan_serves_every_layer_and_is_compared_with_the_call(attend_with, backend):
    case = AttentionCase("plan", (5, 1, 1), (300, 1500, 40), num_q_heads=8, num_kv_heads=2)

    def plan_for(inputs, **options):
        return chunkattn.plan(
            inputs.cu_seqlens_q, inputs.seq_lens, num_q_heads=8, num_kv_heads=2, head_dim=64, page_size=16,
            dtype=case.dtype, backend=backend, **options,
        )  # fmt: skip

    inputs = build(case)
    plan = plan_for(inputs)
    for seed in (1, 2):
        layer = build(case.but(seed=seed))
        assert_state_close(attend_with(layer, plan=plan), layer.expected())
    longer = build(case.but(kv_lens=(300, 1501, 40)))
    recut = build(case.but(q_lens=(4, 2, 1)))
    for wrong, options in (
        (longer, {}),
        (recut, {}),
        (inputs, {"window": (100, -1)}),
        (inputs, {"causal": False}),
        (inputs, {"num_splits": 4}),
        (inputs, {"invariant": True}),
    ):
        with pytest.raises(ValueError, match="plan"):
            attend_with(wrong, plan=plan, **options)
    windowed = plan_for(inputs, window=(100, -1))
    case = case.but(window=(100, -1))
    layer = build(case)
    assert_state_close(attend_with(layer, plan=windowed), layer.expected())


@pytest.mark.parametrize("kv_len", [19802, 3000])
def test_d31_a_neighbour_does_not_change_a_row(kv_len, attend):
    own = AttentionCase("victim", (1,), (kv_len,), num_q_heads=14, num_kv_heads=2, head_dim=64, invariant=True)
    # One pool for all: request 0 is the victim, request 1 a prompt of which chunks of 9 and 10 are taken.
    inputs = build(own.but(q_lens=(1, 10), kv_lens=(kv_len, 10)))
    alone = attend(inputs.recut([(0, 0, 1)]))
    assert_state_close(alone, inputs.recut([(0, 0, 1)]).expected())
    decodes = [(1, row, row + 1) for row in range(10)]
    for before, after in (
        ([], [(1, 0, 9)]),
        ([], [(1, 0, 10)]),
        ([(1, 0, 9)], []),
        ([(1, 0, 10)], []),
        (decodes * 3, decodes[:2]),
        (decodes * 3, decodes * 3 + decodes[:4]),
    ):
        state = attend(inputs.recut([*before, (0, 0, 1), *after], padding=len(after) % 3))
        place = sum(end - begin for _, begin, end in before)
        assert_bitwise_equal(state[0][place : place + 1], alone[0])
        assert_bitwise_equal(state[1][place : place + 1], alone[1])


def test_d31_default_mode_agrees_within_rounding(attend):
    case = AttentionCase("d31", (1, 10), (3000, 10), num_q_heads=14, num_kv_heads=2)
    inputs = build(case)
    for pieces in ([(0, 0, 1)], [(0, 0, 1), (1, 0, 10)], [(1, 0, 9), (0, 0, 1)]):
        cut = inputs.recut(pieces)
        assert_state_close(attend(cut), cut.expected())

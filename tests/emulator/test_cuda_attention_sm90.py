"""The attention kernel for wgmma and tensor copies in the emulator: every option, pages of every kind."""

from __future__ import annotations

import pytest

from chunkattn.testing import BATCHES, AttentionCase, assert_state_close, build, laws

from . import cuda_backend
from .launch import Options
from .session import Session, emulated

cuda_backend.skip_unless_available(cutlass=True)

ATTEND = laws.operator("cuda")
MIXED = AttentionCase("mixed", *BATCHES["mixed_with_empty"], num_q_heads=6, num_kv_heads=2, head_dim=128, padding=3)
# Blocks of 128 keys that are wholly seen come as boxes; every case has some, and some at an edge.
LONG = AttentionCase("long", (70, 1, 9), (500, 530, 300), num_q_heads=8, num_kv_heads=2, head_dim=128)
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
    MIXED.but(name="invariant", q_lens=(33, 1, 5), kv_lens=(50, 2100, 40), invariant=True, num_q_heads=5,
              num_kv_heads=1),
]  # fmt: skip


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

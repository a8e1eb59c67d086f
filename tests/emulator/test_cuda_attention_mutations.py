"""Every barrier, wait and fence of the attention kernels is missed if it is gone, or is proved redundant."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from chunkattn.testing import AttentionCase, assert_state_close, build, laws
from chunkattn.testing.inputs import AttentionInputs

from . import cuda_backend, cuda_runtime, mutation
from .launch import Options, PtxModule
from .session import emulated

cuda_backend.skip_unless_available(cutlass=True)

pytestmark = pytest.mark.full
ATTEND = laws.operator("cuda")
# Prefill and decode tiles, several items a CTA, splits of both classes, an uneven tail, requests without keys, values
# that only some rows of a tile see.
MIXED = AttentionCase("mutants", (70, 1, 1, 5, 1), (300, 530, 40, 0, 0), num_q_heads=4, num_kv_heads=1, num_splits=2)
CASES = {
    "sm80": (80, MIXED),
    # One block under way in decodes, two in prefills; with 64 columns three.
    "sm80 wide": (80, MIXED.but(head_dim=256)),
    # Rings that are passed more than once, by boxes as well as by rows that threads copied, in turn.
    "sm90": (90, MIXED.but(head_dim=128, q_lens=(70, 3, 1, 1, 5, 3, 1), kv_lens=(700, 600, 900, 40, 0, 300, 300))),
    "sm90 odd pages": (90, MIXED.but(head_dim=128, page_size=5)),
    # Tiles that threads widen, rings of bytes that are passed more than once, scales of tokens, short decodes
    # one after the other.
    "sm90 fp8": (
        90,
        MIXED.but(
            head_dim=128,
            q_lens=(70, 3, 1, 1, 5, 3, 1, 1, 1, 1),
            kv_lens=(700, 600, 900, 40, 0, 300, 60, 50, 70, 30),
            kv_dtype=torch.float8_e4m3fn,
            scale_mode="token_head",
        ),
    ),
    # The same with queries that are copied as they are, and for the next item beside tiles that are widened.
    "sm90 fp8, fp16": (
        90,
        MIXED.but(
            head_dim=128,
            dtype=torch.float16,
            kv_dtype=torch.float8_e4m3fn,
            scale_mode="head",
            q_lens=(70, 3, 1, 1, 5, 3, 1, 1),
            kv_lens=(500, 400, 600, 40, 0, 300, 60, 50),
        ),
    ),
    # States of decodes where keys were that tensor copies brought, and bring again.
    "sm90 wide keys": (
        90,
        MIXED.but(
            head_dim=192,
            head_dim_v=128,
            q_lens=(70, 3, 1, 1, 5, 3, 1, 1, 1, 1),
            kv_lens=(700, 600, 900, 40, 0, 300, 260, 50, 70, 30),
        ),
    ),
    # The same by cp.async, right after prefills.
    "sm90 wide keys, odd pages": (
        90,
        MIXED.but(
            head_dim=192,
            head_dim_v=128,
            page_size=5,
            num_splits=1,
            q_lens=(130, 140, 1, 1, 3, 2, 1, 1),
            kv_lens=(154, 300, 49, 200, 140, 60, 30, 90),
        ),
    ),
    # Teams of warps that have blocks of decodes in turn, and states in both stages.
    "sm90 widest": (
        90,
        MIXED.but(
            head_dim=256, q_lens=(70, 3, 1, 1, 5, 3, 1, 1, 1, 1), kv_lens=(400, 330, 1100, 40, 0, 150, 140, 50, 70, 30)
        ),
    ),
    "sm90 widest, odd pages": (
        90,
        MIXED.but(
            head_dim=256,
            page_size=5,
            num_splits=1,
            q_lens=(130, 140, 1, 1, 3, 2, 1, 1),
            kv_lens=(154, 180, 49, 200, 140, 60, 30, 90),
        ),
    ),
}


def spoil(inputs: AttentionInputs) -> None:
    """Puts a NaN where only the last row of a chunk sees it."""
    page_size = inputs.case.page_size
    for request, (q_len, kv_len) in enumerate(zip(inputs.case.q_lens, inputs.case.kv_lens, strict=True)):
        if q_len > 1 and kv_len:
            page = int(inputs.block_table[request, (kv_len - 1) // page_size])
            inputs.v_cache[page, (kv_len - 1) % page_size, 0, 3] = math.nan


@pytest.mark.parametrize("name", CASES)
def test_mutation_score(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    arch, case = CASES[name]
    inputs = build(case)
    spoil(inputs)
    expected = inputs.expected()
    seen: list[tuple[PtxModule, str]] = []
    with emulated(arch) as session:
        launch = session.launch

        def noted(module: PtxModule, kernel: str, *rest: object) -> object:
            if "attention_kernel" in kernel:
                seen.append((module, kernel))
            return launch(module, kernel, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(session, "launch", noted)
        ATTEND(inputs)
    ((original, kernel),) = seen
    module_of = cuda_runtime.CudaLaunches.module

    def run(damaged: PtxModule, options: Options) -> set[str]:
        def module(self: cuda_runtime.CudaLaunches, number: int) -> PtxModule:
            found = module_of(self, number)
            return damaged if kernel in found.kernels else found

        monkeypatch.setattr(cuda_runtime.CudaLaunches, "module", module)
        out, lse = inputs.empty_state()
        try:
            with emulated(arch, options, strict=False) as session:
                ATTEND(inputs, out=out, lse=lse)
            assert_state_close((out, lse), expected)
            wrong = False
        except (AssertionError, RuntimeError):  # or the launch says that it failed; the session holds what was found
            wrong = True
        found = {finding.kind for launched in session.launches for finding in launched.all_findings}
        return found | ({"wrong numbers"} if wrong else set())

    score = mutation.score(name, kernel, original.ptx, run)
    print(score.describe())
    record_property("mutation_score", score.value)
    assert len(score.caught) >= 20, score.describe()
    assert score.value >= 0.95, score.describe()

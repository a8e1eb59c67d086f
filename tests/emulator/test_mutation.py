"""Every barrier, wait, fence and commit of the test kernels is deleted or weakened; the checks must notice.

The score is a figure of CI: what is caught, of the executed sites that are not proved to be redundant. Two subjects run
by default, all of them with `-m full`; the survivors are printed with their proofs (`-s` shows them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from . import cuda_runtime, mutation, native, snippet, triton_driver
from .launch import Buffer, Options, PtxModule
from .ptx_cache import cutlass_directory, nvcc_path

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)

BOUND = 0.95

# Survivors that the tool cannot prove to be redundant, by subject and mutator: how many, and why nothing notices them.
EPILOGUE = "the epilogue has a buffer for each of its subtiles: none is used twice"
LATER_FENCES = "the fences of the pipelines that are made later cover the same barriers"
ARGUED: dict[str, dict[str, tuple[int, str]]] = {
    "triton attention sm_90": {
        "delete bar.sync": (1, "the wait for the warpgroup's wgmma, which needs its four warps, orders the same pairs"),
    },
    "triton tma gemm": {
        "delete bar.sync": (
            4,
            "before and after three of them only warp 0 touches memory; after the last one nobody does",
        ),
    },
    "example 88 KernelTma": {
        "delete bar.sync": (1, EPILOGUE),
        "delete fence.mbarrier_init": (1, LATER_FENCES),
        "mbarrier wait always true": (2, "the only warpgroup loads and computes: it has waited for the wgmma before"),
    },
    "example 88 KernelTmaWarpSpecializedCooperative": {
        "delete bar.sync": (2, EPILOGUE),
        "delete fence.mbarrier_init": (1, LATER_FENCES),
        "delete mbarrier.arrive": (
            3,
            "they release what nothing is loaded into any more: Q, the last tiles of K and V",
        ),
        "mbarrier wait always true": (1, "it lets the warpgroups compute in turn, which no data depends on"),
    },
}
# The same of what Triton 3.9 has beyond 3.6.
ARGUED_OF_TRITON_3_9: dict[str, dict[str, tuple[int, str]]] = {
    "triton tma gemm": {
        "delete bar.sync": (
            3,
            "one follows a wait that every warp makes itself; one stands between two copies of the same thread; one "
            "orders the last wgmma before stores over the own warpgroup's part of A, as does the wait before it",
        ),
    },
}


def _triton(name: str) -> tuple[str, str, mutation.Run]:
    from .triton_cases import AttentionCase, GemmCase, attention_kernel, tma_gemm_kernel

    case: Any
    if name == "triton tma gemm":
        case = GemmCase(tma_gemm_kernel(), (200, 136, 512))
    else:
        case = AttentionCase(attention_kernel(int(name[-2:]), 64, 64, 4), ((64, 256), (70, 100)))
    return case.kernel.name, case.kernel.ptx, case.run


def _cutlass(name: str) -> tuple[str, str, mutation.Run]:
    from .cutlass_cases import ATTENTION, TUTORIALS, AttentionCase, TutorialGemm

    case: Any
    if name.startswith("cute"):
        tutorial = next(tutorial for tutorial in TUTORIALS if str(tutorial) == name.split()[1])
        case = TutorialGemm(tutorial, "TN", (256, 128, 512))
    else:
        example = next(case for case in ATTENTION if case.schedule == name.split()[2])
        case = AttentionCase(replace(example, shape=(1, 2, 256, 1024)))  # the pipeline's stages are used several times
    return (*case.kernel(), case.run)


def _tma_scale(_name: str) -> tuple[str, str, mutation.Run]:
    from .host_cases import ScaleCase

    case = ScaleCase()
    return (*case.kernel(), case.run)


SHARED = ".shared .align 16 .b8 tile[1024];"
STORE = "mov.u32 %r1, tile; mad.lo.u32 %r2, %thread, 4, %r1; st.shared.u32 [%r2], %thread;"
LOAD = "xor.b32 %r3, %thread, 32; mad.lo.u32 %r3, %r3, 4, %r1; ld.shared.u32 %r4, [%r3]; st.global.u32 [%my_out], %r4;"


def _snippet_score(*lines: str) -> mutation.Score:
    """64 threads, each statement on a line of its own."""
    out, source = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)

    def run(module: PtxModule, options: Options) -> set[str]:
        buffers = [Buffer.of(source, "in", writable=False), Buffer.of(out, "out")]
        return module.launch("snippet", 1, 64, [source, out], buffers, options=options).kinds

    return mutation.score("snippet", "snippet", snippet.kernel_text("\n".join(lines), SHARED), run)


def test_a_barrier_that_repeats_another_is_proved_to_be_redundant() -> None:
    score = _snippet_score(STORE, "bar.sync 0;", "bar.sync 0;", LOAD)
    assert len(score.survived) == 2
    assert not score.unexplained
    first, second = (score.redundant[site] for site in sorted(score.survived, key=lambda site: site.line))
    assert "shared-race" in first  # needed once the second one is gone
    assert second == "it never had anything to do"


def test_a_barrier_that_orders_nothing_is_left_to_explain() -> None:
    score = _snippet_score("bar.sync 0;", STORE, "bar.sync 0;", LOAD)
    assert len(score.caught) == 1
    assert len(score.unexplained) == 1


def test_waits_and_commits_without_copies_have_nothing_to_do() -> None:
    score = _snippet_score("cp.async.commit_group;", "cp.async.wait_group 0;", STORE, "bar.sync 0;", LOAD)
    assert len(score.caught) == 1
    assert set(score.redundant.values()) == {"it never had anything to do"}
    assert len(score.redundant) == 3  # the wait is deleted and weakened


full = pytest.mark.full
needs_triton = pytest.mark.skipif(not triton_driver.available(), reason="triton is not installed")
needs_cuda = pytest.mark.skipif(nvcc_path() is None or not cuda_runtime.available(), reason="no nvcc or CUDA headers")
needs_cutlass = pytest.mark.skipif(cutlass_directory() is None, reason="nvidia-cutlass is not installed")

SUBJECTS = [
    pytest.param("cuda tma_scale", _tma_scale, marks=needs_cuda),
    pytest.param("triton attention sm_80", _triton, marks=needs_triton),
    pytest.param("triton attention sm_90", _triton, marks=[needs_triton, full]),
    pytest.param("triton tma gemm", _triton, marks=[needs_triton, full]),
    pytest.param("cute sgemm_sm80", _cutlass, marks=[needs_cuda, needs_cutlass, full]),
    pytest.param("cute wgmma_tma_sm90", _cutlass, marks=[needs_cuda, needs_cutlass, full]),
    pytest.param("example 88 KernelTma", _cutlass, marks=[needs_cuda, needs_cutlass, full]),
    pytest.param("example 88 KernelTmaWarpSpecializedCooperative", _cutlass, marks=[needs_cuda, needs_cutlass, full]),
]


@pytest.mark.parametrize(("name", "make"), SUBJECTS)
def test_score(
    name: str,
    make: Callable[[str], tuple[str, str, mutation.Run]],
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    kernel, ptx, run = make(name)
    score = mutation.score(name, kernel, ptx, run)
    left = {site: site.mutator for site in score.unexplained}
    arguments = [*ARGUED.get(name, {}).items()]
    if triton_driver.available() and triton_driver.version() >= (3, 9):
        arguments += ARGUED_OF_TRITON_3_9.get(name, {}).items()
    for mutator, (count, _) in arguments:
        for site in [site for site, kind in left.items() if kind == mutator][:count]:
            del left[site]
    value = len(score.caught) / (len(score.caught) + len(left))
    record_property("mutation_score", value)
    with capsys.disabled():
        print(f"\nmutation score {value:.1%}: {score.describe().splitlines()[0]}")
    print(score.describe())
    assert score.caught
    assert value >= BOUND, score.describe()

"""Kernels nobody here wrote: CuTe's tutorials and CUTLASS example 88, with their own host code.

Compiling takes a minute or more a kernel, hence the long tier; the results are cached by content.
"""

from __future__ import annotations

import pytest

from . import cuda_runtime, native
from .cutlass_cases import ATTENTION, TUTORIALS, Attention, AttentionCase, Tutorial, TutorialGemm
from .launch import Options
from .ptx_cache import cutlass_directory, nvcc_path

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if nvcc_path() is None:
    pytest.skip("nvcc is not installed", allow_module_level=True)
if cutlass_directory() is None:
    pytest.skip("nvidia-cutlass is not installed", allow_module_level=True)
if not cuda_runtime.available():
    pytest.skip("the CUDA headers are not installed", allow_module_level=True)

pytestmark = pytest.mark.full


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=str)
def test_tutorial(tutorial: Tutorial) -> None:
    for layout in tutorial.layouts:
        case = TutorialGemm(tutorial, layout)
        for seed in range(3):
            findings = [f for launch in case.launch(Options.for_seed(seed)).launches for f in launch.all_findings]
            assert {finding.kind for finding in findings} <= tutorial.known, "\n".join(map(str, findings))
            if "shared-race" not in tutorial.known:
                assert case.error() == 0


def test_missing_barrier_of_the_wgmma_tutorial_is_found() -> None:
    """The numbers are right, because a wgmma waits for its four warps; PTX promises no memory ordering for that."""
    case = TutorialGemm(TUTORIALS[-1], "TN")
    findings = [finding for launch in case.launch(Options()).launches for finding in launch.all_findings]
    assert case.error() == 0
    assert any(finding.kind == "shared-race" and "wgmma_sm90.cu:" in finding.source for finding in findings)


@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_example_88(case: Attention) -> None:
    subject = AttentionCase(case)
    for seed in range(3):
        for launch in subject.launch(Options.for_seed(seed)).launches:
            launch.require_clean()
        assert subject.error() <= 1

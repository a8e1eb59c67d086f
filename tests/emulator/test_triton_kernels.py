"""Attention and TMA GEMM in Triton: right and clean under many schedules, and damaged one site at a time.

The mutation score is a figure of CI. A site that survives must stand in REDUNDANT with the reason why nothing can
notice it; the line numbers belong to one version of Triton, so that the lists count by kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from . import mutation, native, triton_driver
from .launch import Options, PtxModule

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if not triton_driver.available():
    pytest.skip("triton is not installed", allow_module_level=True)

import triton

from .triton_cases import AttentionCase, GemmCase, attention_kernel, tma_gemm_kernel

RAGGED = ((64, 256), (1, 300), (37, 37), (100, 211), (3, 3))


def cases() -> dict[str, AttentionCase | GemmCase]:
    return {
        "attention sm_80 d64": AttentionCase(attention_kernel(80, 64, 64, 4), RAGGED),
        "attention sm_90 d64": AttentionCase(attention_kernel(90, 64, 64, 4), RAGGED),
        "attention sm_90 d128": AttentionCase(attention_kernel(90, 128, 128, 8), ((128, 256), (5, 77))),
        "tma gemm": GemmCase(tma_gemm_kernel(), (200, 136, 192)),
    }


@pytest.mark.parametrize("name", cases())
def test_clean_and_right_over_seeds(name: str) -> None:
    case = cases()[name]
    module = PtxModule(case.kernel.ptx)
    for seed in range(20):
        assert case.run(module, Options.for_seed(seed)) == set(), f"seed {seed}"


@pytest.mark.parametrize("fill", [0x00, 0x4B, 0xFF])
def test_result_does_not_depend_on_old_memory(fill: int) -> None:
    """Zeros, large finite values and NaN in shared memory and registers give the same bits."""
    case = cases()["attention sm_90 d64"]
    module = PtxModule(case.kernel.ptx)
    case.launch(module, Options()).require_clean()
    first = case.out.clone()
    case.launch(module, Options(shared_fill=fill, register_fill=fill)).require_clean()
    assert (case.out.view(-1) == first.view(-1)).all()


def test_short_cache_is_named() -> None:
    case = cases()["attention sm_80 d64"]
    result = case.launch(PtxModule(case.kernel.ptx), Options(), hidden={"K": 64})
    assert result.stopped is not None
    assert "past the end of 'K'" in result.stopped.message
    assert "triton_attention.py:" in result.stopped.message


JOINS_NEXT_GROUP = "its copies join the following group, which the same wait_group covers"
ORDERED_BY_OTHERS = "an earlier barrier already orders every conflicting pair"
ORDERED_BY_WGMMA = "the wait for the warpgroup's wgmma, which needs all four warps, orders the same pairs"
RUN_OF_BARRIERS = "Triton emits barriers in runs (before the loop, at its end, in the epilogue); one of a run is enough"
NOTHING_PENDING = "no bulk store is pending there: Triton pairs every tensor-map update with these two"

# Kernel -> kind of site -> (how many may survive, why).
REDUNDANT = {
    "attention sm_80": {
        "delete bar.sync": (1, ORDERED_BY_OTHERS),
        "delete cp.async.commit_group": (2, JOINS_NEXT_GROUP),
    },
    "attention sm_90": {
        "delete bar.sync": (2, ORDERED_BY_OTHERS + "; " + ORDERED_BY_WGMMA),
        "delete cp.async.commit_group": (2, JOINS_NEXT_GROUP),
    },
    "tma gemm": {
        "delete bar.sync": (21, RUN_OF_BARRIERS),
        "delete bulk wait_group": (3, NOTHING_PENDING),
        "delete bulk commit_group": (3, NOTHING_PENDING),
    },
}


@pytest.mark.skipif(triton.__version__ != "3.6.0", reason="the lists of redundant sites are those of Triton 3.6.0")
def test_mutation_score(record_property: Callable[[str, object], None]) -> None:
    subjects = {
        "attention sm_80": AttentionCase(attention_kernel(80, 64, 64, 4), ((64, 256), (70, 100))),
        "attention sm_90": AttentionCase(attention_kernel(90, 64, 64, 4), ((64, 256), (70, 100))),
        "tma gemm": GemmCase(tma_gemm_kernel(), (200, 136, 512)),
    }
    caught = relevant = 0
    report = []
    for name, case in subjects.items():
        score = mutation.score(name, case.kernel.name, case.kernel.ptx, case.run)
        survivors = Counter(site.mutator for site in score.survived)
        allowed = {kind: count for kind, (count, _) in REDUNDANT[name].items()}
        caught += len(score.caught)
        relevant += len(score.caught) + sum(max(0, n - allowed.get(kind, 0)) for kind, n in survivors.items())
        report.append(score.describe())
    record_property("mutation_score", caught / relevant)
    assert caught >= 45, "\n".join(report)
    assert caught / relevant >= 0.95, "\n".join(report)

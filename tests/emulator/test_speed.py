"""How fast kernels run with all checks; `-s` prints the figures that the README states.

Times are CPU times. The bounds leave room for caches that are shared with other work.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import cuda_runtime, native, triton_driver
from .host_cases import HostCase
from .launch import UNCHECKED, Options, PtxModule
from .ptx_cache import cutlass_directory, nvcc_path
from .report import LaunchResult

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)

pytestmark = pytest.mark.full
needs_triton = pytest.mark.skipif(not triton_driver.available(), reason="triton is not installed")
needs_cutlass = pytest.mark.skipif(
    nvcc_path() is None or not cuda_runtime.available() or cutlass_directory() is None,
    reason="no nvcc or nvidia-cutlass",
)

Run = Callable[[Options], LaunchResult]


def best(run: Run, options: Options, times: int) -> LaunchResult:
    return min((run(options) for _ in range(times)), key=lambda result: result.seconds)


def lane_rate(result: LaunchResult) -> float:
    return result.counters["lane_instructions"] / result.seconds


def launches_of(case: HostCase) -> Run:
    """The launch of a case's host code, its text decoded once."""
    _, ptx = case.kernel()
    module = PtxModule(ptx)

    def run(options: Options) -> LaunchResult:
        (result,) = case.launch(options, module).launches
        return result

    return run


def measure(name: str, run: Run, times: int, capsys: pytest.CaptureFixture[str]) -> LaunchResult:
    """The best of several launches with all checks; prints a row of the README's table."""
    checked, unchecked = best(run, Options(), times), best(run, UNCHECKED, times)
    flops = checked.counters["matrix_flops"] / checked.seconds
    figures = f"{checked.seconds * 1e3:.1f} ms | {unchecked.seconds * 1e3:.1f} ms | {lane_rate(checked) / 1e6:.0f} M"
    with capsys.disabled():
        print(f"\n| {name} | {figures} | {flops / 1e9:.1f} |")
    return checked


@needs_triton
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(
    ("tokens", "head_dim", "heads", "tile", "times", "bound"),
    [((64, 256), 64, 2, (64, 4), 20, 10e-3), ((512, 2048), 128, 4, (128, 8), 3, 1.0)],
)
def test_paged_attention(
    arch: int,
    tokens: tuple[int, int],
    head_dim: int,
    heads: int,
    tile: tuple[int, int],
    times: int,
    bound: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from .triton_cases import AttentionCase, attention_kernel

    kernel = attention_kernel(arch, head_dim, *tile, heads)
    case, module = AttentionCase(kernel, (tokens,)), PtxModule(kernel.ptx)
    name = f"Triton paged attention sm_{arch}, {tokens[0]} x {tokens[1]}, D{head_dim}, {heads} heads"
    result = measure(name, lambda options: case.launch(module, options), times, capsys)
    result.require_clean()
    assert result.seconds <= bound


def _tutorials() -> list[object]:
    from .cutlass_cases import TUTORIALS

    return [
        pytest.param(tutorial, layout, id=f"{tutorial} {layout}")
        for tutorial in TUTORIALS
        for layout in tutorial.layouts
        if "shared-race" not in tutorial.known  # where every read is reported, messages take the time
    ]


@needs_cutlass
@pytest.mark.parametrize(("tutorial", "layout"), _tutorials())
def test_cute_gemm(tutorial, layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At least 150 M lane-instructions a second on an idle core of 2023."""
    from .cutlass_cases import TutorialGemm

    case = TutorialGemm(tutorial, layout, (256, 256, 512))
    result = measure(f"CuTe {tutorial} {layout}, 256 x 256 x 512", launches_of(case), 20, capsys)
    assert lane_rate(result) >= 100e6
    assert case.error() == 0


@needs_cutlass
@pytest.mark.parametrize(
    ("schedule", "tile", "head_dim", "fusion", "shape"),
    [
        ("KernelTma", (64, 128), 64, "DefaultFusion", (1, 4, 256, 512)),
        ("KernelTmaWarpSpecializedPingpong", (128, 64), 64, "ResidualFusion", (1, 4, 512, 512)),
        ("KernelTmaWarpSpecializedCooperative", (128, 128), 128, "CausalFusion", (1, 4, 512, 2048)),
    ],
)
def test_example_88(
    schedule: str,
    tile: tuple[int, int],
    head_dim: int,
    fusion: str,
    shape: tuple[int, int, int, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    from .cutlass_cases import Attention, AttentionCase

    case = AttentionCase(Attention(schedule, *tile, head_dim, fusion, shape))
    _, heads, queries, keys = shape
    name = f"example 88 {schedule}, {queries} x {keys}, D{head_dim}, {heads} heads"
    result = measure(name, launches_of(case), 5, capsys)
    result.require_clean()
    assert lane_rate(result) >= 100e6
    assert case.error() <= 1

"""What benchmarks/gpu_check.py checks and times on a GPU, on small batches by the real kernels in the emulator: the
check itself must be right when it gets its few minutes there.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from . import cuda_backend, triton_backend
from .session import emulated

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="no checkout"),
]
triton_backend.skip_unless_available()
cuda_backend.skip_unless_available(cutlass=True)

REFUSED = {"triton": set(), "cuda": {"fp32"}}


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_every_answer_is_right(backend: str, arch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_tasks

    module = triton_backend if backend == "triton" else cuda_backend
    checks = []
    for _ in module.open_session((arch, 0), monkeypatch):
        for what in (*gpu_tasks.CORRECTNESS, gpu_tasks.CACHE_OPS):
            checks += gpu_tasks.right(backend, what, dry_run=True)["checks"]
    assert all(check["right"] for check in checks), checks
    assert {check["what"] for check in checks if not check["served"]} == REFUSED[backend]


@pytest.mark.parametrize("arch", [80, 90])
def test_whatever_is_timed_is_admitted(arch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mix as one call and as two, planned ahead, and the shortest calls. The times are the emulator's."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_tasks
    import gpu_times

    cpu = torch.device("cpu")
    with emulated(arch):
        cell = gpu_times.cell_of(gpu_tasks.workloads(dry_run=True)["W4 p16"], ("triton", "cuda"), cpu)
        for backend in ("triton", "cuda"):
            assert gpu_times.decode_us(backend, cpu) > 0
            assert gpu_times.plan_us(backend, cpu) > 0
    found = {entry["provider"]: (entry["status"], entry["reason"]) for entry in cell["providers"]}
    ours = ("ours-triton", "ours-cuda", "two-calls-triton", "two-calls-cuda")
    assert found == dict.fromkeys(ours, ("measured", ""))

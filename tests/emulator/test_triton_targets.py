"""The plan, append, merge and page kernels compile for every architecture from sm_80 on, and keep to their registers.

ptxas spills a few bytes of the plan's scalars on some architectures; it runs once a step.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import chunkattn
from chunkattn.backends import device
from chunkattn.planning import choose

from . import triton_backend, triton_driver
from .session import Session

triton_backend.skip_unless_available()

PLAN_SPILL_BYTES = 32
ARCHS = (80, 86, 89, 90, 100, 120)


class _Compiles:
    """Stands in for a session: kernels are compiled for its architecture and not run."""

    def __init__(self, arch: int):
        self.session = Session(arch)
        self.kernels: list[tuple[str, str]] = []  # (name, PTX)


def forget() -> None:
    """Compiled kernels belong to a session: none of another's may be used, nor ours by others."""
    from chunkattn.backends.triton import append_kv, merge_states, pages, plan

    choose.backend.cache_clear()
    for kernel in (plan.plan_kernel, append_kv.append_kernel, merge_states.merge_kernel, pages.move_kernel):
        kernel.device_caches.clear()


@pytest.fixture(params=ARCHS, ids=lambda arch: f"sm_{arch}")
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Compiles]:
    target = _Compiles(request.param)
    gpu = device.Gpu.of_arch(request.param, 132)

    def load(utils: Any, name: str, binary: bytes, shared: int, _device: int) -> tuple[Any, ...]:
        assert shared <= gpu.shared_bytes
        target.kernels.append((name, utils._driver.pending_ptx))
        return None, None, 0, 0, 1024

    monkeypatch.setitem(triton_driver.MAX_SHARED, request.param, gpu.shared_bytes)
    monkeypatch.setattr(triton_driver._EmulatorUtils, "load_binary", load)
    monkeypatch.setattr(triton_driver.EmulatorLauncher, "__call__", lambda *_: None)
    forget()
    with triton_driver.installed(target.session), device.stand_in("cpu", gpu):
        yield target
    forget()


def spills(ptx: str, arch: int, tmp_path: Any) -> int:
    """Bytes that ptxas spills."""
    from triton.backends.nvidia.compiler import get_ptxas

    source = tmp_path / "kernel.ptx"
    source.write_text(ptx)
    suffix = "a" if arch >= 90 else ""
    command = [get_ptxas(arch).path, "-v", f"--gpu-name=sm_{arch}{suffix}", str(source), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr)
    assert found, done.stderr
    return sum(map(int, found))


def run_everything() -> None:
    """Each kernel with the options that cost the most registers."""
    bf16, tokens = torch.bfloat16, 2100
    starts, lens = torch.tensor([0, tokens]).int(), torch.tensor([tokens]).int()
    for count in (1, 2000):  # both block sizes of the plan
        chunkattn.plan(
            torch.arange(count + 1).int(), torch.ones(count).int(), num_q_heads=32, num_kv_heads=8, head_dim=128,
            page_size=16, dtype=bf16, max_tokens=4096, max_seq_len=4096, backend="triton",
        )  # fmt: skip
    table = torch.zeros(1, 200).int()
    for dim, kv_dtype, scale in (
        (128, bf16, None),
        (128, torch.float8_e4m3fn, torch.ones(200, 16, 8)),
        (256, torch.int8, torch.ones(8)),
    ):
        k = torch.zeros(tokens, 8, dim, dtype=bf16)
        q = torch.zeros(tokens, 32, dim, dtype=bf16)
        rope = chunkattn.Rope(*torch.zeros(2, tokens, dim // 2), interleaved=dim == 256)
        pool = torch.zeros(200, 16, 8, dim, dtype=torch.uint8 if kv_dtype.itemsize == 1 else torch.int16).view(kv_dtype)
        chunkattn.append_kv(
            k, k, pool, pool.clone(), table, starts, lens, k_scale=scale,
            v_scale=None if scale is None else scale.clone(), rope=rope, q=q, backend="triton",
        )  # fmt: skip
    for dtype in (bf16, torch.float32):
        state, lse = torch.zeros(8, 4, 128, dtype=dtype), torch.zeros(8, 4)
        chunkattn.merge_states(state, lse, state, lse, backend="triton")
    chunkattn.gather_pages(torch.zeros(4, 16, 8, 128, dtype=bf16), torch.tensor([1]), backend="triton")


def test_every_kernel_compiles_and_keeps_to_its_registers(compiled, tmp_path):
    run_everything()
    assert {name for name, _ in compiled.kernels} == {"plan_kernel", "append_kernel", "merge_kernel", "move_kernel"}
    for name, ptx in compiled.kernels:
        allowed = PLAN_SPILL_BYTES if name == "plan_kernel" else 0
        assert spills(ptx, compiled.session.arch, tmp_path) <= allowed, name

"""Matrix fragments and shared-memory tiles against CuTe's traits, which g++ compiles."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from . import native, snippet
from .ptx_cache import cutlass_directory, cutlass_includes, nvcc_path

pytestmark = pytest.mark.skipif(native.unavailable_reason() is not None, reason=str(native.unavailable_reason()))
SOURCE = Path(__file__).parent / "kernels" / "cute_layouts.cpp"
DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "s8": torch.int8,
    "u8": torch.uint8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


@functools.cache
def cute_output() -> list[list[str]]:
    if cutlass_directory() is None:
        pytest.skip("nvidia-cutlass is not installed")
    if nvcc_path() is None:
        pytest.skip("the CUDA headers are not installed")
    cuda = Path(os.path.realpath(nvcc_path())).parent.parent / "include"
    cuda = cuda if (cuda / "cuda_runtime.h").exists() else Path("/usr/local/cuda/include")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "cute_layouts"
        includes = [f"-I{path}" for path in (*cutlass_includes(), cuda, cuda / "cccl")]
        subprocess.run(["g++", "-std=c++17", "-O0", "-w", *includes, str(SOURCE), "-o", str(program)], check=True)
        text = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    return [line.split() for line in text.splitlines() if line.startswith(("mma", "gmma"))]


MMA = [
    "m16n8k8.f16", "m16n8k16.f16", "m16n8k16.bf16", "m16n8k4.tf32", "m16n8k8.tf32", "m16n8k16.s8", "m16n8k32.s8",
    "m16n8k32.u8", "m16n8k32.e4m3", "m16n8k32.e5m2",
]  # fmt: skip


def fragment(matrix: torch.Tensor, layout: list[int]) -> torch.Tensor:
    """Registers [32, count] int32 of a matrix whose element (row, column) has index row + rows * column."""
    flat = matrix.T.contiguous().view(-1)
    return flat[torch.tensor(layout)].view(32, -1).contiguous().view(torch.int32)


@pytest.mark.parametrize("name", MMA)
def test_mma_fragments(name: str) -> None:
    layouts = {row[2]: [int(v) for v in row[3:]] for row in cute_output() if row[:2] == ["mma", name]}
    shape, kind = name.split(".")
    k = int(shape.rpartition("k")[2])
    dtype = DTYPES[kind]
    generator = torch.Generator().manual_seed(k)
    low, high = (0, 8) if kind == "u8" else (-4, 5)
    a = torch.randint(low, high, (16, k), generator=generator).float()
    b = torch.randint(low, high, (8, k), generator=generator).float()  # column n of B is row n here
    c = torch.randint(-9, 10, (16, 8), generator=generator).float()
    integer = dtype in (torch.int8, torch.uint8)
    accumulator = torch.int32 if integer else torch.float32
    parts = [fragment(a.to(dtype), layouts["A"]), fragment(b.to(dtype), layouts["B"])]
    parts.append(fragment(c.to(accumulator), layouts["C"]))
    data = torch.cat(parts, 1).contiguous()
    counts = [part.shape[1] for part in parts]
    names = [[f"%r{10 + sum(counts[:p]) + i}" for i in range(counts[p])] for p in range(3)]
    loads = "\n".join(f"ld.global.u32 %r{10 + i}, [%rd1+{4 * i}];" for i in range(data.shape[1]))
    stores = "\n".join(f"st.global.u32 [%rd2+{4 * i}], {name};" for i, name in enumerate(names[2]))
    types = "s32.{0}.{0}.s32" if integer else "f32.{0}.{0}.f32"
    operands = ", ".join("{" + ", ".join(part) + "}" for part in (names[2], *names))
    body = f"""
      mul.wide.u32 %rd1, %thread, {4 * data.shape[1]}; add.s64 %rd1, %in, %rd1;
      mul.wide.u32 %rd2, %thread, {4 * counts[2]}; add.s64 %rd2, %out, %rd2;
      {loads}
      mma.sync.aligned.{shape}.row.col.{types.format(kind)} {operands};
      {stores}
    """
    out, result = snippet.run(body, data.view(-1), torch.zeros(32 * counts[2], dtype=torch.int32))
    result.require_clean()
    expected = fragment((a @ b.T + c).to(accumulator), layouts["C"])
    assert torch.equal(out, expected.view(-1))
    if snippet.ptxas_path() is not None:
        text = body if integer else body.replace("{" + ", ".join(names[2]) + "}", "{%f1, %f2, %f3, %f4}")
        assert snippet.ptxas_error(snippet.kernel_text(text)) is None


@functools.cache
def tiles() -> dict[str, tuple[int, list[int]]]:
    """Name -> (descriptor with start address 0, element offset of (mn, k))."""
    found = {}
    for row in cute_output():
        if row[0] == "gmma":
            found[f"{row[1]} {row[2]}"] = (int(row[3]), [int(v) for v in row[4:]])
    return found


TILES = [f"{major} {swizzle}" for major in ("K", "MN") for swizzle in ("none", "32B", "64B", "128B")]


@pytest.mark.parametrize("b_tile", TILES)
@pytest.mark.parametrize("a_tile", TILES)
def test_wgmma_tiles(a_tile: str, b_tile: str) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-4, 5, (64, 16), generator=generator).half()
    b = torch.randint(-4, 5, (64, 16), generator=generator).half()
    image = torch.zeros(2, 4096, dtype=torch.half)
    for matrix, name, part in ((a, a_tile, image[0]), (b, b_tile, image[1])):
        part[torch.tensor(tiles()[name][1])] = matrix.view(-1)
    accumulators = [f"%f{k}" for k in range(32)]
    clear = "\n".join(f"mov.f32 {register}, 0f00000000;" for register in accumulators)
    stores = "\n".join(f"st.global.f32 [%rd5+{4 * k}], {register};" for k, register in enumerate(accumulators))
    transpose = ", ".join(str(int(name.startswith("MN"))) for name in (a_tile, b_tile))
    body = f"""
      mov.u32 %r1, tile; mul.lo.u32 %r2, %thread, 16;
      LOOP: add.u32 %r3, %r1, %r2; cvt.u64.u32 %rd1, %r2; add.s64 %rd1, %in, %rd1;
      ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%rd1];
      st.shared.v4.u32 [%r3], {{%r4, %r5, %r6, %r7}};
      add.u32 %r2, %r2, 2048; setp.lt.u32 %p1, %r2, 16384; @%p1 bra LOOP;
      {clear}
      fence.proxy.async; bar.sync 0;
      shr.u32 %r8, %r1, 4; cvt.u64.u32 %rd2, %r8;
      add.u64 %rd3, %rd2, {tiles()[a_tile][0]};
      add.u64 %rd4, %rd2, {tiles()[b_tile][0]}; add.u64 %rd4, %rd4, 512;
      wgmma.fence.sync.aligned;
      wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16
        {{{", ".join(accumulators)}}}, %rd3, %rd4, 0, 1, 1, {transpose};
      wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
      mul.wide.u32 %rd5, %thread, 128; add.s64 %rd5, %out, %rd5;
      {stores}
    """
    module = ".shared .align 1024 .b8 tile[16384];"
    out, result = snippet.run(body, image.view(torch.int32).view(-1), torch.zeros(128 * 32), 128, module=module)
    result.require_clean()
    # Register 4j + 2h + o of lane 4g + q in warp w: row 16w + g + 8h, column 8j + 2q + o.
    fragments = out.view(4, 8, 4, 8, 2, 2)  # w, g, q, j, h, o
    actual = fragments.permute(0, 4, 1, 3, 2, 5).reshape(64, 64)
    assert torch.equal(actual, a.float() @ b.float().T)
    if a_tile == b_tile and snippet.ptxas_path() is not None:
        assert re.search("error", snippet.ptxas_error(snippet.kernel_text(body, module)) or "") is None

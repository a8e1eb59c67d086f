"""Small PTX kernels for the emulator's own tests: the frame around a few statements."""

from __future__ import annotations

import functools
import shutil
import subprocess

import torch

from .launch import Buffer, Options, PtxModule
from .report import LaunchResult

# Registers a body may use. %thread, %lane, %warp: position; %in, %out: addresses of the two arrays;
# %my_in, %my_out: the element of this thread (4 bytes each).
FRAME = """
.version 8.7
.target {target}
.address_size 64
{module}
.visible .entry snippet(.param .u64 p_in, .param .u64 p_out{parameters}) {{
  .reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .f32 %f<64>; .reg .b64 %rd<32>; .reg .f64 %d<16>;
  .reg .b32 %thread, %lane, %warp, %cta; .reg .b64 %in, %out, %my_in, %my_out, %index;
  ld.param.u64 %in, [p_in];
  ld.param.u64 %out, [p_out];
  mov.u32 %thread, %tid.x;
  mov.u32 %lane, %laneid;
  shr.u32 %warp, %thread, 5;
  mov.u32 %cta, %ctaid.x;
  mul.wide.u32 %index, %thread, 4;
  add.s64 %my_in, %in, %index;
  add.s64 %my_out, %out, %index;
{body}
  ret;
}}
"""


def kernel_text(body: str, module: str = "", parameters: str = "", target: str = "sm_90a") -> str:
    """The PTX of a kernel `snippet(in, out, ...)` around `body`; `module` goes before it."""
    return FRAME.format(body=body, module=module, parameters=parameters, target=target)


def run(
    body: str,
    inputs: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    threads: int = 32,
    grid: int = 1,
    module: str = "",
    cluster: int = 1,
    options: Options | None = None,
) -> tuple[torch.Tensor, LaunchResult]:
    """Runs a body; `inputs` is the array behind %in (read-only), `out` the one behind %out."""
    inputs = torch.zeros(threads, dtype=torch.int32) if inputs is None else inputs
    out = torch.zeros(threads * grid, dtype=torch.int32) if out is None else out
    buffers = [Buffer.of(inputs, "in", writable=False), Buffer.of(out, "out")]
    ptx = PtxModule(kernel_text(body, module))
    result = ptx.launch("snippet", grid, threads, [inputs, out], buffers, cluster=(cluster, 1, 1), options=options)
    return out, result


@functools.cache
def ptxas_path() -> str | None:
    return shutil.which("ptxas")


def ptxas_error(ptx: str, arch: str = "sm_90a") -> str | None:
    """What ptxas says against a text; None if it accepts it."""
    path = ptxas_path()
    assert path is not None
    result = subprocess.run([path, f"-arch={arch}", "-", "-o", "/dev/null"], input=ptx, capture_output=True, text=True)
    return result.stderr if result.returncode else None

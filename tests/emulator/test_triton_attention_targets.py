"""The attention kernel on every architecture: it compiles, fits its shared memory, and its main loops do not spill.

Figures are kept in baselines/triton-attention-targets.json; CHUNKATTN_EMULATOR_UPDATE_BASELINES=1 writes them anew.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import pytest
import torch

from . import native, triton_driver
from .performance_record import BASELINES, UPDATE_VARIABLE

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if not triton_driver.available():
    pytest.skip("triton is not installed", allow_module_level=True)

import triton

from chunkattn.backends.device import Gpu

from .static_figures import attention_args, compile_attention, matrix_loops

ARCHS = (80, 86, 89, 90, 100, 120)
KERNELS = {
    "bf16-d32": {"head_dim": 32},
    "bf16-d64": {"head_dim": 64},
    "bf16-d128": {},
    "bf16-d128-page64": {"page_size": 64},
    "bf16-d128-invariant": {"invariant": True},
    "bf16-d192-128": {"head_dim": 192, "head_dim_v": 128},
    "bf16-d256": {"head_dim": 256},
    "e4m3-d128": {"kv_dtype": torch.float8_e4m3fn, "scale": "head"},
    "int8-d128-token": {"kv_dtype": torch.int8, "scale": "token"},
}
FAST = {("bf16-d128", 80), ("bf16-d128", 90)}
PATH = BASELINES / "triton-attention-targets.json"


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        pytest.param(name, arch, marks=() if (name, arch) in FAST else pytest.mark.full, id=f"{name}-sm_{arch}")
        for name in KERNELS
        for arch in ARCHS
    ],
)
def test_compiles_fits_and_does_not_spill_where_it_counts(name: str, arch: int) -> None:
    found = compile_attention(attention_args(**KERNELS[name]), arch)
    assert found.shared_bytes <= Gpu.of_arch(arch, 132).shared_bytes
    assert found.loops
    assert all(loop.matrix > 0 for loop in found.loops)
    record = json.loads(PATH.read_text()) if PATH.exists() else {}
    if os.environ.get(UPDATE_VARIABLE):
        record.setdefault(name, {})[f"sm_{arch}"] = asdict(found)
        PATH.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    # Masked tiles at either end are two of many and load nothing ahead.
    main_loops = [loop for loop in found.loops if loop.copies]
    assert main_loops
    assert all(loop.spills == 0 for loop in main_loops)
    if triton.__version__ != "3.6.0":
        pytest.skip("the baselines are those of Triton 3.6.0")
    before = record[name][f"sm_{arch}"]
    assert found.registers <= before["registers"]
    assert found.spill_bytes <= before["spill_bytes"] * 1.1
    assert found.shared_bytes <= before["shared_bytes"]
    assert sum(loop.instructions for loop in found.loops) <= 1.05 * sum(
        loop["instructions"] for loop in before["loops"]
    )


def test_loops_are_found_in_a_disassembly() -> None:
    """Two loops in one; a jump back that is none, to a block that the code after the loop shares with another path.
    Some instructions as sm_120's are printed."""
    sass = """
.L_x_1:
        /*0000*/                   MOV R1, R2 ;
.L_x_2:
        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4    &req={4}   ?trans2;
        /*0020*/                   LDL R3, [R1] ;
        /*0030*/                   LDGSTS.E.BYPASS.128 [R1], [R2.64] ;
        /*0040*/              @P0  BRA `(.L_x_2)                          ?trans1;
        /*0050*/                   STL [R1], R3 ;
        /*0060*/                   BRA.U !UP0, `(.L_x_1) ;
        /*0070*/              @P1  BRA `(.L_x_4) ;
.L_x_3:
        /*0080*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0090*/                   EXIT ;
.L_x_4:
        /*00a0*/                   MOV R1, R2 ;
        /*00b0*/                   BRA `(.L_x_3) ;
"""
    (loop,) = matrix_loops(sass)
    assert (loop.instructions, loop.matrix, loop.spills, loop.copies) == (4, 1, 1, 1)

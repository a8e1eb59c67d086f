"""Global memory traffic of the attention kernel: sectors of 32 bytes touched, against the bytes that must move.

Counters (also matrix operations and bank conflicts: wavefronts beyond requests) are kept in
baselines/triton-attention-traffic.json; CHUNKATTN_EMULATOR_UPDATE_BASELINES=1 writes them anew.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
import torch

from chunkattn.testing import AttentionCase, build, laws

from . import native, triton_driver
from .launch import UNCHECKED
from .performance_record import BASELINES, UPDATE_VARIABLE, growth
from .session import emulated

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if not triton_driver.available():
    pytest.skip("triton is not installed", allow_module_level=True)

import triton

ALLOWANCE = 1.05
PATH = BASELINES / "triton-attention-traffic.json"
COUNTERS = ("matrix_flops", "shared_requests", "shared_wavefronts", "global_sectors", "async_bytes_read", "barriers")
DECODES = AttentionCase(
    "decodes", (1, 1), (1024, 1024), num_q_heads=8, num_kv_heads=2, head_dim=128, page_size=16, num_splits=1
)
CASES = [
    DECODES,
    DECODES.but(name="whole tiles in a page", page_size=64),
    DECODES.but(name="HND", layout="hnd"),
    DECODES.but(name="fp8", kv_dtype=torch.float8_e4m3fn, scale_mode="head"),
    DECODES.but(name="one tile of prefill", q_lens=(32,), kv_lens=(1024,)),
]


@pytest.mark.parametrize("arch", [80, pytest.param(90, marks=pytest.mark.full)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sectors_are_the_useful_bytes(case: AttentionCase, arch: int) -> None:
    """Keys and values once a KV head, queries, outputs and log-sum-exps once; tables and lengths are the rest.

    Asynchronous copies count by their bytes: neighbouring lanes copy 16 bytes each of rows that are whole sectors.
    """
    inputs = build(case)
    with emulated(arch, replace(UNCHECKED, count_memory=True)) as session:
        out, lse = laws.operator("triton")(inputs)
    counters = next(launch.counters for launch in session.launches if launch.kernel == "attention_kernel")
    keys = sum(case.kv_lens) * case.num_kv_heads
    useful = keys * (case.head_dim + case.value_dim) * case.cache_dtype.itemsize
    useful += sum(tensor.numel() * tensor.element_size() for tensor in (inputs.q, out, lse))
    ratio = (32 * counters["global_sectors"] + counters["async_bytes_read"]) / useful
    print(f"{case} sm_{arch}: {ratio:.3f} of the useful bytes")
    assert 1.0 <= ratio <= ALLOWANCE
    if triton.__version__ != "3.6.0":
        pytest.skip("the baselines are those of Triton 3.6.0")
    now = {"counters": {name: counters[name] for name in COUNTERS}}
    record = json.loads(PATH.read_text()) if PATH.exists() else {}
    if os.environ.get(UPDATE_VARIABLE):
        record[f"{case} sm_{arch}"] = now
        PATH.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    assert not growth(now, record[f"{case} sm_{arch}"])


@pytest.mark.full
@pytest.mark.parametrize(("head_dims", "lanes"), [((40, 40), 128), ((96, 96), 256), ((192, 128), 2 * 256 + 128)])
def test_matrix_operations_are_those_of_whole_lanes(head_dims: tuple[int, int], lanes: int) -> None:
    """A head dim is rounded up to a power of two; tiles of 64 rows, which the widest have, let two warps each do the
    same products of queries and keys. What that costs is printed."""
    case = DECODES.but(name="lanes", q_lens=(32,), kv_lens=(256,), causal=False, head_dim=head_dims[0],
                       head_dim_v=head_dims[1])  # fmt: skip
    with emulated(80, UNCHECKED) as session:
        laws.operator("triton")(build(case))
    done = sum(launch.counters["matrix_flops"] for launch in session.launches)
    pairs = 32 * 256 * case.num_q_heads
    print(f"{head_dims}: {done / (2 * pairs * sum(head_dims)):.2f} of the operations needed")
    assert done == 2 * pairs * lanes

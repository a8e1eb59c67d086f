"""The native core as a module: built where it can be, one thread pool, every instruction set."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

import pytest
import torch

from chunkattn.env import ISAS
from chunkattn.testing import BATCHES, AttentionCase, assert_state_close, build, laws

HAS_NATIVE = importlib.util.find_spec("chunkattn._native") is not None
# With a compiler the core must be there: a build that failed must not pass as a machine without one.
pytestmark = pytest.mark.skipif(not HAS_NATIVE and shutil.which("g++") is None, reason="no compiler and no native core")


def core():
    from chunkattn import _native

    return _native


# Not the checkout: there `python -c` would import the sources, which have no native core unless built in place.
ELSEWHERE = tempfile.gettempdir()


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, "-c", code], {**os.environ, **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, cwd=ELSEWHERE)


def test_it_is_built_where_a_compiler_is():
    assert core().isas(), "no instruction set at all"
    assert core().isas()[-1] == "portable"


ONE_POOL = """
import os, torch
torch.mm(torch.randn(512, 512), torch.randn(512, 512))  # starts torch's own pool
threads = lambda: len(os.listdir('/proc/self/task'))
before = threads()
from chunkattn.testing import AttentionCase, build, laws
case = AttentionCase('pool', (200, 1, 1), (600, 2000, 700), num_q_heads=16, num_kv_heads=4)
attend = laws.operator('cpu')
for _ in range(3):
    attend(build(case))
    torch.mm(torch.randn(512, 512), torch.randn(512, 512))
libraries = {line.split()[-1] for line in open('/proc/self/maps') if '/' in line}
runtimes = [name for name in libraries if any(omp in name for omp in ('libgomp', 'libomp', 'libiomp'))]
print(before, threads(), len(runtimes))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads through /proc")
def test_one_openmp_pool_in_the_process():
    result = run(ONE_POOL)
    assert result.returncode == 0, result.stderr
    before, after, runtimes = map(int, result.stdout.split())
    assert runtimes == 1
    assert after == before


SMALL = AttentionCase("isa", *BATCHES["mixed_with_empty"], num_q_heads=6, num_kv_heads=2, head_dim=80, page_size=24)


def test_the_environment_chooses_the_instruction_set():
    code = """
import chunkattn, torch
print(chunkattn.explain(chunkattn.AttentionSpec('cpu', torch.bfloat16, torch.bfloat16, 4, 2, 64, 64, 16)))
"""
    for isa in core().isas():
        assert isa + "," in run(code, CHUNKATTN_ISA=isa).stdout.split("\n")[0]
    bad = run(code, CHUNKATTN_ISA="sse9")
    assert bad.returncode != 0
    assert f"CHUNKATTN_ISA: expected one of {', '.join(ISAS)}, got 'sse9'" in bad.stderr


def test_an_instruction_set_that_is_not_there_is_refused():
    with pytest.raises((ValueError, RuntimeError), match="sse9"):
        core().select_isa("sse9")


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_any_number_of_threads_gives_the_same(threads):
    attend = laws.operator("cpu")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for case in (
            SMALL,
            SMALL.but(dtype=torch.float32, num_splits=5),
            SMALL.but(kv_dtype=torch.int8, scale_mode="head"),
        ):
            inputs = build(case)
            assert_state_close(attend(inputs), inputs.expected())
            laws.check_repeatable(attend, inputs)
    finally:
        torch.set_num_threads(before)


def test_invariant_mode_does_not_depend_on_the_number_of_threads():
    attend = laws.operator("cpu")
    before = torch.get_num_threads()
    inputs = build(SMALL.but(invariant=True, kv_lens=(0, 65, 33, 40, 0, 7, 5000)))
    states = []
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            states.append(attend(inputs))
    finally:
        torch.set_num_threads(before)
    for state in states[1:]:
        laws.assert_same_state(state, states[0], "other thread count: ")


def test_calls_from_several_python_threads_at_once():
    from concurrent.futures import ThreadPoolExecutor

    attend = laws.operator("cpu")
    inputs = [build(SMALL.but(seed=seed, num_splits=4)) for seed in range(4)]
    expected = [attend(i) for i in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            for state, right in zip(pool.map(attend, inputs), expected, strict=True):
                laws.assert_same_state(state, right, "concurrent call: ")

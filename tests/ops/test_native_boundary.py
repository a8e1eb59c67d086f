"""No input crashes the process: mutated arguments through the ops, and junk straight at the native core."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("chunkattn._native") is None, reason="the native core is not built"
)
SCRIPT = Path(__file__).parent / "fuzz_boundary.py"


# Not the checkout: there `python -c` would import the sources, which have no native core unless built in place.
ELSEWHERE = tempfile.gettempdir()


def check(command: list[str], timeout: int) -> str:
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=timeout, cwd=ELSEWHERE)
    last = "\n".join(result.stderr.splitlines()[-3:])
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{last}"
    return result.stdout


def test_mutated_arguments_never_crash():
    accepted, refused = map(int, check([str(SCRIPT), "0", "400"], 300).split())
    assert accepted > 80
    assert refused > 80


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 7))
def test_mutated_arguments_never_crash_full(seed):
    check([str(SCRIPT), str(seed), "2000"], 600)


JUNK = """
import faulthandler, itertools, random, sys
faulthandler.enable()
import torch
from chunkattn import _native as core
from chunkattn.args import AppendArgs, AttentionArgs, MergeArgs, PlanArgs

junk = [None, 0, -1, 2**70, 1.5, 'text', b'', [], (), {}, object(), torch, torch.zeros(3), torch.zeros(0),
        torch.zeros(2, 2).to('meta'), torch.zeros(2, 3).to_sparse(), torch.zeros(2, dtype=torch.complex64),
        torch.nn.Parameter(torch.zeros(2, 2, 2)), torch.zeros(4, 4, 8).bfloat16()]
rng = random.Random(0)
calls = refused = 0

def attempt(function, *arguments):
    global calls, refused
    calls += 1
    try:
        function(*arguments)
    except (TypeError, ValueError, RuntimeError, AttributeError, OverflowError, IndexError, BufferError):
        refused += 1

for value in junk:
    attempt(core.select_isa, value)
    attempt(core.plan_partial_rows, value)
    for function in (core.plan, core.merge_states):
        attempt(function, value, 1)
    attempt(core.attention, value, 1, False)
    attempt(core.append_kv, value, 1, False)
for length in (0, 1, 5, 40):
    attempt(core.attention, (None,) * length, 1, False)
    attempt(core.append_kv, (None,) * length, 1, False)
for a, b, c in itertools.product(junk, repeat=3):
    attempt(core.copy_pages, a, b, c, 1)
    attempt(core.gather_pages, a, b, c, 1)
    attempt(core.scatter_pages, a, b, c, 1)
for _ in range(3000):
    attempt(core.attention, AttentionArgs._make(rng.choices(junk, k=len(AttentionArgs._fields))), 1, False)
    attempt(core.append_kv, AppendArgs._make(rng.choices(junk, k=len(AppendArgs._fields))), 1, False)
    attempt(core.merge_states, MergeArgs._make(rng.choices(junk, k=len(MergeArgs._fields))), 1)
    attempt(core.plan, PlanArgs._make(rng.choices(junk, k=len(PlanArgs._fields))), 1)
print(calls, refused)
"""


def test_junk_never_crashes_the_native_core():
    calls, refused = map(int, check(["-c", JUNK], 300).split())
    assert calls > 8000
    assert refused > 0.8 * calls


def test_a_tensor_without_memory_is_refused():
    """A fake one has sizes and no data."""
    from chunkattn import _native as core

    with FakeTensorMode():
        words = torch.zeros(36, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^words: expected a tensor that holds numbers, got one without memory"):
        core.plan_partial_rows(words)

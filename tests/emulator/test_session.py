"""`emulated()` and the library: CPU tensors count as a GPU's, reports use the ops' own names and rights."""

from __future__ import annotations

import contextlib

import pytest
import torch

from . import native, triton_driver

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if not triton_driver.available():
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
import triton.language as tl

from chunkattn.args import AttentionArgs, MergeArgs
from chunkattn.backends.device import Gpu, gpu

from .report import KernelError
from .session import emulated


@triton.jit
def copy_kernel(source_ptr, target_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target_ptr + offsets, tl.load(source_ptr + offsets, offsets < n), offsets < n)


def launch(source: torch.Tensor, target: torch.Tensor, count: int) -> None:
    """What a backend does at the end: it knows pointers, not what they are called."""
    copy_kernel[(1,)](source, target, count, BLOCK=256)


def attention(args: AttentionArgs, source: torch.Tensor, target: torch.Tensor, count: int) -> None:
    launch(source, target, count)


def attention_arguments() -> AttentionArgs:
    tensors = {
        "q": torch.randn(4, 2, 16),
        "k_cache": torch.randn(3, 8, 1, 16),
        "v_cache": torch.randn(3, 8, 1, 16),
        "block_table": torch.zeros(1, 2, dtype=torch.int32),
        "cu_seqlens_q": torch.zeros(2, dtype=torch.int32),
        "seq_lens": torch.zeros(1, dtype=torch.int32),
        "out": torch.zeros(4, 2, 16),
        "lse": torch.zeros(4, 2),
    }
    others = dict.fromkeys(("alibi_slopes", "sinks", "tree_mask", "k_scale", "v_scale", "plan", "workspace"))
    options = (1.0, True, -1, -1, 0.0, False, 0, "triton")
    return AttentionArgs(*tensors.values(), *others.values(), *options)


def test_cpu_tensors_count_as_a_gpu() -> None:
    assert gpu("cpu") is None
    with emulated(arch=80, multiprocessors=6):
        assert gpu("cpu") == Gpu.of_arch(80, 6)
        with emulated(arch=90):
            assert gpu("cpu") == Gpu.of_arch(90, 4)
        assert gpu("cpu") == Gpu.of_arch(80, 6)
    assert gpu("cpu") is None


def test_op_arguments_keep_their_names() -> None:
    args = attention_arguments()
    with pytest.raises(KernelError, match=r"bounds\][\s\S]*past the end of 'k_cache'"), emulated(80):
        attention(args, args.k_cache.view(-1)[320:], args.out, 128)


def launch_and_fail(args: AttentionArgs, source: torch.Tensor) -> None:
    """What host code does that is told only that its launch failed."""
    with contextlib.suppress(KernelError):
        attention(args, source, args.out, 128)
    raise RuntimeError("of the host code")


def test_what_was_found_is_told_where_host_code_fails_of_it() -> None:
    args = attention_arguments()
    with pytest.raises(KernelError, match="past the end of 'k_cache'") as caught, emulated(80):
        launch_and_fail(args, args.k_cache.view(-1)[320:])
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_an_error_after_clean_launches_stays_what_it_is() -> None:
    args = attention_arguments()
    with pytest.raises(RuntimeError, match=r"^of the host code$"), emulated(80):
        launch_and_fail(args, args.q)


def test_only_written_arguments_are_writable() -> None:
    args = attention_arguments()
    with emulated(90):
        attention(args, args.q, args.out, 128)
    assert torch.equal(args.out, args.q)
    with pytest.raises(KernelError, match=r"read-only\][\s\S]*write to the read-only 'v_cache'"), emulated(90):
        attention(args, args.q, args.v_cache, 128)


def test_memory_that_is_written_under_one_name_may_be_read_under_another() -> None:
    """merge_states in place: out is out_a."""
    out_a, lse_a, out_b, lse_b = torch.randn(4, 16), torch.randn(4), torch.randn(4, 16), torch.randn(4)
    args = MergeArgs(out_a, lse_a, out_b, lse_b, out_a, lse_a, "triton")
    with emulated(90):
        attention(args, args.out_b, args.out, 64)
    assert torch.equal(out_a, out_b)

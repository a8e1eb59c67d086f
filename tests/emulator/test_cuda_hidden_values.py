"""Values of hidden keys again, by the CUDA kernels in the emulator: narrow and wide tiles, both kernels, every loop.
And infinities that every row sees."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from chunkattn.testing import AttentionCase, build, laws

from . import cuda_backend
from .launch import Options
from .seen_values import SEEN, check_seen
from .session import emulated

cuda_backend.skip_unless_available(cutlass=True)
sys.path.append(str(Path(__file__).parents[1] / "attention"))

from test_hidden_values import CASES  # noqa: E402
from test_hidden_values import test_values_of_hidden_keys_do_not_matter as check  # noqa: E402

ATTEND = laws.operator("cuda")
SERVED = [case for case in CASES if case.dtype != torch.float32]
WIDTHS = {80: (32, 64, 128, 256), 90: (64, 128, 192, 256)}  # sm_80's kernel serves sm_90 below 64
RUNS = [
    pytest.param(
        case.but(head_dim=width, head_dim_v=128 if width == 192 else None, name=f"{case.name} d{width}"),
        arch,
        seed,
        marks=pytest.mark.full if seed or (width, arch) not in {(64, 80), (128, 90)} else (),
        id=f"{case.name}-d{width}-sm_{arch}-seed{seed}",
    )
    for arch, widths in WIDTHS.items()
    for width in widths
    for case in SERVED
    for seed in (0, 1, 2)
    if case.kv_dtype is None or (arch, width) not in {(90, 192), (90, 256)}
]


@pytest.mark.parametrize(("case", "arch", "seed"), RUNS)
def test_cuda(case, arch, seed):
    with emulated(arch, Options.for_seed(seed)) as session:
        check(case, ATTEND)
    kernels = {launch.kernel for launch in session.launches if "attention_kernel" in launch.kernel}
    assert kernels
    assert all(("sm90" in kernel) == (arch == 90) for kernel in kernels)


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("head_dim", [64, 128, pytest.param(256, marks=pytest.mark.full)])
def test_in_invariant_mode_no_bit_of_other_rows_tells_of_them(head_dim, arch):
    """The block that holds the NaN is computed on in another way by tiles of which a row sees it."""
    for seed in range(4):
        case = AttentionCase(
            "nan", (18,), (300,), num_q_heads=8, num_kv_heads=1, head_dim=head_dim, invariant=True, seed=seed
        )
        inputs = build(case)
        inputs.v_cache[inputs.block_table[0, 299 // 16], 299 % 16, 0, 3] = float("nan")  # the last token's alone
        with emulated(arch):
            whole = ATTEND(inputs)
            cut = ATTEND(inputs.recut([(0, 0, 4), (0, 4, 18)]))
        laws.assert_same_state(cut, whole, f"seed {seed}: ")


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(32, 8), (32, 32), (64, 64), (192, 128), (256, 256)])
def test_infinities_that_every_row_sees(head_dim, head_dim_v, arch):
    with emulated(arch):
        check_seen(SEEN.but(head_dim=head_dim, head_dim_v=head_dim_v), ATTEND)

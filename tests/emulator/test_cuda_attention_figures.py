"""What the attention kernel executes, moves and needs, without a GPU: against baselines, and against what it must.

Nothing here is a time. Registers, spills and shared memory are those of ptxas; counts are those of the emulator.
"""

from __future__ import annotations

import pytest
import torch

from chunkattn.testing import AttentionCase, build, kv_bytes, laws

from . import cuda_backend, performance_record
from .launch import Options, PtxModule
from .report import LaunchResult
from .session import emulated

cuda_backend.skip_unless_available(cutlass=True)

ATTEND = laws.operator("cuda")
PREFILL = AttentionCase("prefill", (256,), (1024,), num_q_heads=4, num_kv_heads=1, head_dim=128, page_size=128)
DECODE = AttentionCase("decode", (1,) * 4, (1024,) * 4, num_q_heads=8, num_kv_heads=2, head_dim=128)
# As many row tiles as CTAs, so that none is split: partial states are read again.
TILES = {
    "d192x128": PREFILL.but(name="prefill-d192x128", head_dim=192, head_dim_v=128),
    "d256": PREFILL.but(name="prefill-d256", head_dim=256, q_lens=(128,), num_splits=1),
    "d256 decode": DECODE.but(name="decode-d256", head_dim=256, kv_lens=(1000,) * 4),
    "d128 e4m3": PREFILL.but(name="prefill-d128-e4m3", kv_dtype=torch.float8_e4m3fn),
}


def counted(case: AttentionCase, monkeypatch: pytest.MonkeyPatch, arch: int = 80) -> tuple[PtxModule, LaunchResult]:
    """The attention launch of a call, and its module."""
    modules: list[PtxModule] = []
    with emulated(arch, Options(count_memory=True)) as session:
        launch = session.launch

        def noted(module: PtxModule, kernel: str, *rest: object) -> LaunchResult:
            if "attention_kernel" in kernel:
                modules.append(module)
            return launch(module, kernel, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(session, "launch", noted)
        ATTEND(build(case))
    (result,) = [each for each in session.launches if "attention_kernel" in each.kernel]
    return modules[0], result


def bytes_read(result: LaunchResult) -> int:
    """By copies to shared memory, and by loads: page ids, the plan, lengths."""
    return int(result.counters["async_bytes_read"] + result.counters["global_bytes_read"])


@pytest.mark.parametrize("case", [PREFILL, DECODE, PREFILL.but(name="prefill", head_dim=64)],
                         ids=["prefill-d128", "decode-d128", "prefill-d64"])  # fmt: skip
def test_against_the_baseline(case: AttentionCase, monkeypatch: pytest.MonkeyPatch) -> None:
    module, result = counted(case, monkeypatch)
    now = performance_record.record(result.require_clean(), module.ptx, "sm_80")
    resources = now.get("resources")
    if resources:
        assert resources["spill_stores"] == resources["spill_loads"] == 0
        assert resources["registers"] <= 255, "two CTAs of 128 threads share the register file"
    performance_record.require_no_growth(f"attention_sm80-{case.name}-d{case.head_dim}", now)


def test_decode_reads_keys_and_values_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes from global memory within 3 % of K, V and queries."""
    case = DECODE.but(kv_lens=(1000,) * 4)
    _, result = counted(case, monkeypatch)
    useful = kv_bytes(case.q_lens, case.kv_lens, num_kv_heads=2, head_dim=128) + 4 * 8 * 128 * 2
    read = bytes_read(result)
    assert useful <= read <= 1.03 * useful, f"{read} bytes read, {useful} useful"


def test_every_row_tile_reads_the_keys_it_sees_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, result = counted(PREFILL, monkeypatch)
    tiles = [kv_bytes((32,), (768 + 32 * (tile + 1),), num_kv_heads=1, head_dim=128) for tile in range(8)]
    useful = sum(tiles) + 256 * 4 * 128 * 2
    read = bytes_read(result)
    assert useful <= read <= 1.03 * useful, f"{read} bytes read, {useful} useful"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("d256", "d128 e4m3") else pytest.mark.full) for name in TILES]
)
def test_wide_and_widened_tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No spills, reads of shared memory without bank conflicts, keys and values read once by every row tile."""
    case = TILES[name]
    module, result = counted(case, monkeypatch)
    resources = performance_record.record(result.require_clean(), module.ptx, "sm_80").get("resources")
    if resources:
        assert resources["spill_stores"] == resources["spill_loads"] == 0
        assert resources["registers"] <= 255
    # A request takes up to four wavefronts of 128 bytes (ldmatrix does), more only by conflicts.
    assert result.counters["shared_wavefronts"] <= 4 * result.counters["shared_requests"]
    (q_len, *_), (kv_len, *_) = case.q_lens, case.kv_lens
    tokens = 1 if q_len == 1 else (64 if case.value_dim > 128 else 128) * case.num_kv_heads // case.num_q_heads
    ends = range(kv_len - q_len + tokens, kv_len + 1, tokens)
    useful = len(case.q_lens) * kv_bytes(
        (tokens,) * len(ends), ends, num_kv_heads=case.num_kv_heads, head_dim=case.head_dim,
        head_dim_v=case.value_dim, element_size=case.cache_dtype.itemsize,
    )  # fmt: skip
    if case.cache_dtype == case.dtype:  # others are converted on their way
        useful += sum(case.q_lens) * case.num_q_heads * case.head_dim * 2
    read = result.counters["async_bytes_read"]
    assert useful <= read <= 1.03 * useful, f"{read} bytes copied, {useful} useful"

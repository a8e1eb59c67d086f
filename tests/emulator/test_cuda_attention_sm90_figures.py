"""What the attention kernel for wgmma executes, moves and needs, without a GPU: against baselines, and against what it
must.

Nothing here is a time. Registers and spills are those of ptxas; counts are those of the emulator.
"""

from __future__ import annotations

import pytest

from chunkattn.testing import AttentionCase, kv_bytes

from . import cuda_backend, performance_record
from .test_cuda_attention_figures import DECODE, PREFILL, bytes_read, counted

cuda_backend.skip_unless_available(cutlass=True)

# Keys end where pages and blocks do not.
UNEVEN_DECODE = DECODE.but(kv_lens=(1000,) * 4)
REGISTERS = 168  # of a thread at the launch: 65,536 shared by 384


@pytest.mark.parametrize("case", [PREFILL, DECODE], ids=["prefill-d128", "decode-d128"])
def test_against_the_baseline(case: AttentionCase, monkeypatch: pytest.MonkeyPatch) -> None:
    module, result = counted(case, monkeypatch, 90)
    assert "sm90" in result.kernel
    now = performance_record.record(result.require_clean(), module.ptx, "sm_90a")
    resources = now.get("resources")
    if resources:
        assert resources["spill_stores"] == resources["spill_loads"] == 0
        assert resources["registers"] <= REGISTERS
    performance_record.require_no_growth(f"attention_sm90-{case.name}-d{case.head_dim}", now)


def test_decode_reads_keys_and_values_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes from global memory within 3 % of K, V and queries."""
    _, result = counted(UNEVEN_DECODE, monkeypatch, 90)
    useful = kv_bytes((1,) * 4, (1000,) * 4, num_kv_heads=2, head_dim=128) + 4 * 8 * 128 * 2
    read = bytes_read(result)
    assert useful <= read <= 1.03 * useful, f"{read} bytes read, {useful} useful"


def test_every_row_tile_reads_the_keys_it_sees_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, result = counted(PREFILL, monkeypatch, 90)
    tiles = [kv_bytes((32,), (768 + 32 * (tile + 1),), num_kv_heads=1, head_dim=128) for tile in range(8)]
    useful = sum(tiles) + 256 * 4 * 128 * 2
    read = bytes_read(result)
    assert useful <= read <= 1.03 * useful, f"{read} bytes read, {useful} useful"

"""What the attention kernel for wgmma executes, moves and needs, without a GPU: against baselines, and against what it
must.

Nothing here is a time. Registers and spills are those of ptxas; counts are those of the emulator.
"""

from __future__ import annotations

import re

import pytest
import torch

from chunkattn.build import builder
from chunkattn.testing import AttentionCase, kv_bytes

from . import cuda_backend, performance_record, sass_figures
from .sass_blocks import Blocks
from .test_cuda_attention_figures import DECODE, PREFILL, bytes_read, counted

cuda_backend.skip_unless_available(cutlass=True)

# Keys end where pages and blocks do not.
UNEVEN_DECODE = DECODE.but(kv_lens=(1000,) * 4)
# Bytes that are widened on their way, with a scale a token and head.
FP8_PREFILL, FP8_DECODE = (
    case.but(name=f"{case.name}-e4m3", kv_dtype=torch.float8_e4m3fn, scale_mode="token_head")
    for case in (PREFILL, UNEVEN_DECODE)
)
WIDE_PREFILL, WIDE_DECODE = PREFILL.but(head_dim=256, q_lens=(128,), num_splits=1), UNEVEN_DECODE.but(head_dim=256)
REGISTERS = 168  # of a thread at the launch: 65,536 shared by 384


@pytest.mark.parametrize(
    "case",
    [PREFILL, DECODE, FP8_PREFILL, WIDE_PREFILL]
    + [pytest.param(case, marks=pytest.mark.full) for case in (FP8_DECODE, WIDE_DECODE)],
    ids=lambda case: f"{case.name}-d{case.head_dim}",
)
def test_against_the_baseline(case: AttentionCase, monkeypatch: pytest.MonkeyPatch) -> None:
    module, result = counted(case, monkeypatch, 90)
    assert "sm90" in result.kernel
    now = performance_record.record(result.require_clean(), module.ptx, "sm_90a")
    resources = now.get("resources")
    if resources:
        assert resources["spill_stores"] == resources["spill_loads"] == 0
        assert resources["registers"] <= REGISTERS
    performance_record.require_no_growth(f"attention_sm90-{case.name}-d{case.head_dim}", now)


@pytest.mark.parametrize("case", [UNEVEN_DECODE, WIDE_DECODE], ids=lambda case: f"d{case.head_dim}")
def test_decode_reads_keys_and_values_once(case: AttentionCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes from global memory within 3 % of K, V and queries."""
    _, result = counted(case, monkeypatch, 90)
    width = case.head_dim
    useful = kv_bytes((1,) * 4, (1000,) * 4, num_kv_heads=2, head_dim=width) + 4 * 8 * width * 2
    read = bytes_read(result)
    assert useful <= read <= 1.03 * useful, f"{read} bytes read, {useful} useful"


@pytest.mark.parametrize("case", [PREFILL, WIDE_PREFILL], ids=lambda case: f"d{case.head_dim}")
def test_every_row_tile_reads_the_keys_it_sees_once(case: AttentionCase, monkeypatch: pytest.MonkeyPatch) -> None:
    _, result = counted(case, monkeypatch, 90)
    (q_len,), (kv_len,), width = case.q_lens, case.kv_lens, case.head_dim
    ends = range(kv_len - q_len + 32, kv_len + 1, 32)  # of the keys that tiles see
    useful = sum(kv_bytes((32,), (end,), num_kv_heads=1, head_dim=width) for end in ends) + q_len * 4 * width * 2
    read = bytes_read(result)
    assert useful <= read <= 1.03 * useful, f"{read} bytes read, {useful} useful"


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("fp16", marks=pytest.mark.full)])
@pytest.mark.parametrize("head_dim", [pytest.param(64, marks=pytest.mark.full), 128, 256])
def test_weights_are_computed_beside_the_products(head_dim: int, dtype: str) -> None:
    """In the machine code of the loop over blocks that are seen whole, in this order: the products with K of one block
    and with V of the last one begin, between two barriers by which the groups take turns; the scores are waited for;
    all weights are computed; the product with V is waited for."""
    kernel = sass_figures.Kernel(f"attention_sm90-d{head_dim}-{dtype}-sm90a", 16, "sm90", head_dim)
    reason = sass_figures.unavailable_reason(kernel)
    if reason is not None:
        pytest.skip(reason)
    blocks = Blocks(sass_figures.machine_code(builder.build([kernel.listed()])[kernel.variant].path))
    (body,) = blocks.innermost(re.compile("HGMMA")).values()
    loop = blocks.text(body)

    def places(pattern: str) -> list[int]:
        return [place for place, line in enumerate(loop) if re.search(pattern, line)]

    products, ends = places("HGMMA"), places("HGMMA.*gsb0")
    keys = 64 if head_dim == 256 else 128  # of a block
    assert len(products) == head_dim // 16 + keys // 16
    assert [products.index(end) + 1 for end in ends] == [head_dim // 16, len(products)], "wgmma is serialised"
    (turn,), (turn_over,) = places(r"BAR\.SYNC"), places(r"BAR\.ARV")
    (scores,), (values,) = places("DEPBAR.*0x1"), places("DEPBAR.*0x0")
    assert turn < products[0] < products[-1] < turn_over < scores < values
    exponentials = [place for place in places(r"MUFU\.EX2") if place > turn]
    of_a_lane = 16 * keys // 32
    assert len([place for place in exponentials if scores < place < values]) >= of_a_lane + 2
    assert all(scores < place < values for place in exponentials), "weights are computed beside no product"
    assert not places(r"\b(LDL|STL)\b")


def test_decode_reads_bytes_and_their_scales_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, result = counted(FP8_DECODE, monkeypatch, 90)
    keys = kv_bytes((1,) * 4, (1000,) * 4, num_kv_heads=2, head_dim=128, element_size=1, scale_bytes=8)
    useful = keys + 4 * 8 * 128 * 2
    read = bytes_read(result)
    assert useful <= read <= 1.03 * useful, f"{read} bytes read, {useful} useful"


@pytest.mark.full
def test_every_row_tile_reads_bytes_and_their_scales_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, result = counted(FP8_PREFILL, monkeypatch, 90)
    tiles = [
        kv_bytes((32,), (768 + 32 * (tile + 1),), num_kv_heads=1, head_dim=128, element_size=1, scale_bytes=8)
        for tile in range(8)
    ]
    useful = sum(tiles) + 256 * 4 * 128 * 2
    read = bytes_read(result)
    assert useful <= read <= 1.03 * useful, f"{read} bytes read, {useful} useful"

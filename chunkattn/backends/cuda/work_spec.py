"""What a plan for the CUDA kernels depends on besides the lengths."""

from __future__ import annotations

from chunkattn.backends.device import Gpu
from chunkattn.build.variants import Variant
from chunkattn.planning.work import WorkSpec

ITEMS_PER_WORKER = 8
MIN_SPLIT = 256
INVARIANT_SPLIT = 2048
BALANCE = 100  # an H200's 790 TFLOP/s to 4.3 TB/s, which one SM can pull 1.8 times its share of (none measured here)
CONSTANTS = ("tile_rows", "decode_rows", "kv_tile", "ctas_per_sm")  # of a variant, on which its plans depend
SPLIT_COST = 128  # keys' worth of starting an item and joining its state (an estimate, not measured)


def constants_of(variant: Variant) -> tuple[int | None, ...]:
    """What the variant's plans depend on besides the problem; None where it says nothing."""
    said = dict(variant.constants)
    return tuple(said.get(name) for name in CONSTANTS)


def of_variant(
    variant: Variant,
    device: Gpu,
    num_q_heads: int,
    num_kv_heads: int,
    element_bytes: int,
    *,
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
    invariant: bool = False,
    num_splits: int = 0,
    items_per_worker: int = ITEMS_PER_WORKER,
    split_cost: int = SPLIT_COST,
) -> WorkSpec:
    """The spec of an attention variant: tile shapes come from the list of variants, workers from the GPU.

    Args:
        element_bytes: of q's dtype; a plan does not know what the cache holds.
    """
    tile_rows = variant.constant("tile_rows")
    return WorkSpec(
        num_q_heads,
        num_kv_heads,
        causal,
        *window,
        invariant,
        num_splits,
        num_workers=device.num_sms * variant.constant("ctas_per_sm"),
        items_per_worker=items_per_worker,
        tile_rows=tile_rows,
        decode_rows=variant.constant("decode_rows"),
        decode_heads=1,
        kv_tile=variant.constant("kv_tile"),
        min_split=MIN_SPLIT,
        invariant_split=INVARIANT_SPLIT,
        # Bytes of a key against the arithmetic of a key of a prefill tile, at BALANCE operations a byte.
        decode_cost=max(1, 256 * BALANCE * element_bytes // (2 * tile_rows)),
        split_cost=split_cost,
    )

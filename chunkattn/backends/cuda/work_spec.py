"""What a plan for the CUDA kernels depends on besides the lengths."""

from __future__ import annotations

from chunkattn.args import AttentionArgs, PlanArgs
from chunkattn.backends.device import Gpu
from chunkattn.build.variants import Variant
from chunkattn.plan.work import WorkSpec
from chunkattn.types import AttentionSpec

ITEMS_PER_WORKER = 2
MIN_SPLIT = 256
INVARIANT_SPLIT = 2048


def of_variant(
    variant: Variant,
    device: Gpu,
    num_q_heads: int,
    num_kv_heads: int,
    *,
    causal: bool = True,
    window_left: int = -1,
    window_right: int = -1,
    invariant: bool = False,
    num_splits: int = 0,
) -> WorkSpec:
    """The spec of an attention variant: tile shapes come from the list of variants, workers from the GPU."""
    tile_rows = variant.constant("tile_rows")
    return WorkSpec(
        num_q_heads,
        num_kv_heads,
        causal,
        window_left,
        window_right,
        invariant,
        num_splits,
        num_workers=device.num_sms * variant.constant("ctas_per_sm"),
        items_per_worker=ITEMS_PER_WORKER,
        tile_rows=tile_rows,
        decode_rows=variant.constant("decode_rows"),
        decode_heads=1,
        kv_tile=variant.constant("kv_tile"),
        min_split=MIN_SPLIT,
        invariant_split=INVARIANT_SPLIT,
    )


def of_plan(variant: Variant, device: Gpu, a: PlanArgs) -> WorkSpec:
    """The spec of one plan call."""
    return of_variant(
        variant,
        device,
        a.num_q_heads,
        a.num_kv_heads,
        causal=a.causal,
        window_left=a.window_left,
        window_right=a.window_right,
        invariant=a.invariant,
        num_splits=a.num_splits,
    )


def of_attention(variant: Variant, device: Gpu, a: AttentionArgs) -> WorkSpec:
    """The spec of the plan that one attention call needs."""
    return of_variant(
        variant,
        device,
        a.q.shape[1],
        a.k_cache.shape[2],
        causal=a.causal,
        window_left=a.window_left,
        window_right=a.window_right,
        invariant=a.invariant,
        num_splits=a.num_splits,
    )


def of_problem(variant: Variant, device: Gpu, spec: AttentionSpec, num_splits: int) -> WorkSpec:
    """A spec that bounds the workspace of every call of a problem."""
    return of_variant(
        variant, device, spec.num_q_heads, spec.num_kv_heads, invariant=spec.invariant, num_splits=num_splits
    )

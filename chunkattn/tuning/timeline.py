"""How long the workers of a plan take by a simple model: enough to leave out what cannot win, not to choose a winner.

Items are drawn in the plan's order by whichever worker is free. A prefill item costs the products of its row tile with
the keys that it sees, or the reading of those keys where that takes longer; a decode item the bytes that it reads; a
split one its partial state as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from chunkattn.planning.work import WorkItem, WorkSpec, items, takes_decode


@dataclass(frozen=True)
class Rates:
    """What one worker does, roughly.

    Attributes:
        flops: of a prefill tile, per second.
        decode_flops: of decode rows, per second.
        bandwidth: bytes per second from memory.
        near_bandwidth: bytes per second from what caches hold: keys that several tiles share, partial states.
        item_seconds: of any item: finding its parts, packing its queries.
    """

    flops: float
    decode_flops: float
    bandwidth: float
    near_bandwidth: float
    item_seconds: float


CPU = Rates(flops=2e11, decode_flops=4e10, bandwidth=1e10, near_bandwidth=3e10, item_seconds=3e-6)


def gpu_rates(num_workers: int) -> Rates:
    """Of a worker on a GPU of about an H200's proportions; only ratios matter."""
    return Rates(350e12 / num_workers, 100e12 / num_workers, 6e12 / num_workers, 12e12 / num_workers, 1e-6)


def seconds(
    spec: WorkSpec,
    words: Sequence[int],
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    row_dims: int,
    key_bytes: int,
    rates: Rates,
) -> float:
    """Until the last item of a plan is done.

    Args:
        spec, words: the plan.
        q_lens, kv_lens: what it was made from.
        row_dims: D + Dv.
        key_bytes: of one key and value of one head.
        rates: of a worker.
    """
    starts = [0, *accumulate(q_lens)]
    decode: list[float] = []
    prefill: list[float] = []
    for item in items(spec, words, starts, kv_lens):
        keys = _seen(spec, item, q_lens[item.request], kv_lens[item.request])
        rows = len(item.rows) * len(item.kv_heads)
        partial = 2 * rows * (row_dims + 2) * 4 / rates.near_bandwidth if item.num_splits > 1 else 0.0
        read = len(item.kv_heads) * keys * key_bytes
        if item.is_decode:
            taken = max(read / rates.bandwidth, 2.0 * rows * keys * row_dims / rates.decode_flops)
        else:
            # A GPU's tile with fewer rows costs as much as a full one; a CPU's is cut finer.
            rows = spec.tile_rows if spec.decode_cost > 0 else rows
            taken = max(2.0 * rows * keys * row_dims / rates.flops, read / rates.near_bandwidth)
        (decode if item.is_decode else prefill).append(taken + partial + rates.item_seconds)
    return _run(spec.num_workers, decode, prefill)


def _seen(spec: WorkSpec, item: WorkItem, q_len: int, kv_len: int) -> int:
    """Keys between the first and the last one that some row of the item sees."""
    low, high = item.keys.start, item.keys.stop
    history = kv_len - q_len
    if spec.causal:
        high = min(high, history + (item.rows.stop - 1) // spec.group + 1)
    if spec.window_left >= 0:
        low = max(low, history + item.rows.start // spec.group - spec.window_left)
    return max(0, high - low)


def _run(workers: int, decode: Sequence[float], prefill: Sequence[float]) -> float:
    free = [0.0] * max(workers, 1)
    decode_left, prefill_left = len(decode), len(prefill)
    while decode_left or prefill_left:
        begin = heapq.heappop(free)
        if takes_decode(decode_left, len(decode), prefill_left, len(prefill), workers):
            taken = decode[len(decode) - decode_left]
            decode_left -= 1
        else:
            taken = prefill[len(prefill) - prefill_left]
            prefill_left -= 1
        heapq.heappush(free, begin + taken)
    return max(free)

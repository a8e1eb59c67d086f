"""A GPU's timeline of a plan, by a cost model: how long workers take that draw items from two queues.

A worker is a slot for a thread block. Prefill items cost arithmetic: the products of their row tile with the keys it
sees, at the worker's share of the GPU's rate. Decode items cost bytes; a worker pulls at most ``reach`` times its fair
share of the memory's bandwidth, all of them together no more than the bandwidth. The bound is that of one kind of work
at a time on a worker: ``max(M, C + M / reach)``, with C and M the times of all prefill and all decode items alone,
without any overhead.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from plan_batches import Lengths

from chunkattn.planning.work import WorkItem, WorkSpec, items, make_plan, takes_decode


@dataclass(frozen=True)
class Gpu:
    """Rates of a GPU as its kernels reach them.

    Attributes:
        flops: per second of all workers together.
        bandwidth: bytes per second.
        reach: how much more than its fair share of the bandwidth one worker can pull.
        l2_reach: the same for the second-level cache, where partial states live.
    item_seconds: of every item: finding its parts, loading queries, filling the pipeline.
    """

    flops: float = 0.70 * 790e12
    bandwidth: float = 0.90 * 4.3e12
    reach: float = 1.8
    l2_reach: float = 3.0
    item_seconds: float = 1e-6


@dataclass(frozen=True)
class Model:
    """Bytes and products of a problem."""

    head_dim: int = 128
    head_dim_v: int = 128
    element_bytes: int = 2

    @property
    def key_bytes(self) -> int:
        return (self.head_dim + self.head_dim_v) * self.element_bytes


@dataclass(frozen=True)
class Timeline:
    """Seconds: of the simulated launch, and of the bound."""

    seconds: float
    prefill_alone: float
    decode_alone: float
    bound: float

    @property
    def excess(self) -> float:
        """How far the launch is over its bound: 0.1 is a tenth."""
        return self.seconds / self.bound - 1 if self.bound else 0.0


def decode_cost(spec: WorkSpec, gpu: Gpu, model: Model = Model()) -> int:
    """Of a key of a decode item in 1/256 of a key of a full prefill tile, as a GPU's `WorkSpec` wants it."""
    decode = model.key_bytes / (gpu.reach * gpu.bandwidth)
    prefill = 2 * spec.tile_rows * (model.head_dim + model.head_dim_v) / gpu.flops
    return max(1, round(256 * decode / prefill))


def visible_products(spec: WorkSpec, item: WorkItem, q_len: int, kv_len: int) -> int:
    """Rows times keys that a row tile is multiplied with: whole KV tiles from its first to its last visible key."""
    first_token, last_token = item.rows.start // spec.group, (item.rows.stop - 1) // spec.group
    low, high = item.keys.start, item.keys.stop
    if spec.causal:
        high = min(high, kv_len - q_len + last_token + 1)
    if spec.window_left >= 0:
        low = max(low, (kv_len - q_len + first_token - spec.window_left) // spec.kv_tile * spec.kv_tile)
    return spec.tile_rows * max(0, -(-(high - low) // spec.kv_tile) * spec.kv_tile)


def simulate(spec: WorkSpec, lengths: Lengths, gpu: Gpu = Gpu(), model: Model = Model()) -> Timeline:
    """Runs a plan through the model, workers drawing items as `chunkattn.planning.work.takes_decode` says."""
    words = make_plan(spec, lengths.cu_seqlens_q, lengths.kv_lens)
    worker_flops, fair_bytes = gpu.flops / spec.num_workers, gpu.bandwidth / spec.num_workers
    row_bytes = (model.head_dim_v + 2) * 4
    pair_flops = 2 * (model.head_dim + model.head_dim_v)
    fixed_bytes = gpu.item_seconds * fair_bytes * gpu.reach
    decode: list[float] = []  # bytes of an item
    prefill: list[float] = []  # seconds of an item
    whole_bytes, whole_seconds = 0.0, 0.0  # of all items, were nothing split
    for item in items(spec, words, lengths.cu_seqlens_q, lengths.kv_lens):
        # A split item writes its partial rows and, on average, reads as many when they are merged.
        partial = 2 * len(item.rows) * len(item.kv_heads) * row_bytes if item.num_splits > 1 else 0
        if item.is_decode:
            useful = len(item.keys) * len(item.kv_heads) * model.key_bytes
            decode.append(useful + fixed_bytes + partial * gpu.reach / gpu.l2_reach)
            whole_bytes += useful + (fixed_bytes if item.split == 0 else 0)
        else:
            q_len, kv_len = lengths.q_lens[item.request], lengths.kv_lens[item.request]
            seconds = visible_products(spec, item, q_len, kv_len) * pair_flops / worker_flops
            prefill.append(seconds + gpu.item_seconds + partial / (fair_bytes * gpu.l2_reach))
            whole_seconds += seconds + (gpu.item_seconds if item.split == 0 else 0)
    prefill_alone, decode_alone = whole_seconds / spec.num_workers, whole_bytes / gpu.bandwidth
    bound = max(decode_alone, prefill_alone + decode_alone / gpu.reach)
    return Timeline(_run(spec.num_workers, decode, prefill, gpu), prefill_alone, decode_alone, bound)


def _run(workers: int, decode: Sequence[float], prefill: Sequence[float], gpu: Gpu) -> float:
    """Seconds until the last item is done. Decode items share the bandwidth evenly, so a clock of bytes that an
    active item has received orders their ends."""
    decode_left, prefill_left = len(decode), len(prefill)
    decode_ends: list[float] = []  # on the clock of bytes
    prefill_ends: list[float] = []  # in seconds
    now, received, idle = 0.0, 0.0, workers
    while True:
        while idle and (decode_left or prefill_left):
            if takes_decode(decode_left, len(decode), prefill_left, len(prefill), workers):
                heapq.heappush(decode_ends, received + decode[len(decode) - decode_left])
                decode_left -= 1
            else:
                heapq.heappush(prefill_ends, now + prefill[len(prefill) - prefill_left])
                prefill_left -= 1
            idle -= 1
        if not decode_ends and not prefill_ends:
            return now
        rate = gpu.bandwidth * min(gpu.reach / workers, 1 / len(decode_ends)) if decode_ends else 0.0
        next_decode = now + (decode_ends[0] - received) / rate if decode_ends else math.inf
        next_prefill = prefill_ends[0] if prefill_ends else math.inf
        if next_decode <= next_prefill:
            received, now = decode_ends[0], next_decode
            while decode_ends and decode_ends[0] <= received:
                heapq.heappop(decode_ends)
                idle += 1
        else:
            received, now = received + (next_prefill - now) * rate, next_prefill
            heapq.heappop(prefill_ends)
            idle += 1

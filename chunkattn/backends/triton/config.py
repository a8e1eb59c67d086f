"""Tile configurations: which ones fit an architecture, which one is taken, and what the plan needs to know of it.

A configuration depends on what `plan` is told and on the GPU alone, so that a plan and the calls that use it agree.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from chunkattn.args import PlanArgs
from chunkattn.backends.device import Gpu, gpu
from chunkattn.planning.work import WorkSpec

DECODE_ROWS = 16  # rows of an mma tile: fewer cost the same
NARROW_VALUES = 32
INVARIANT_SPLIT = 2048
ITEMS_PER_WORKER = 8  # a wait for the last one costs a sixteenth on the average
MIN_SPLIT = 256
# Estimates for an H200 from published figures of Triton kernels; nothing here was measured.
# BALANCE, operations a byte: prefill reaches 45 % of 790 TFLOP/s, decode 80 % of 4.3 TB/s: 355 / 3.44 = 103.
# SPLIT_COST, keys of a prefill tile: an item begins with six dependent trips to memory of 0.7 us (queue, request,
# lengths, plan, page, first keys) and leaves and joins 64 KiB of state, 2 us more. One of 132 programs takes 24 ns a
# key at the rates above, so that is at most 250 keys; other warps hide some of it. 128 keeps the workloads of
# tests/unit/test_plan_timeline.py within a tenth of their bound, 64 and 250 do not.
BALANCE = 100
SPLIT_COST = 128
_MATRICES_IN_SHARED = (90, 100, 103)  # architectures whose matrix instructions read K and V from shared memory
# (keys of a tile, tiles in flight); anything in flight goes before larger tiles.
_SHAPES = [(block_n, num_stages) for block_n in (64, 32, 16) for num_stages in (3, 2, 1)]


@dataclass(frozen=True)
class KernelConfig:
    """One way to compile the attention kernel.

    Attributes:
        block_m: packed query rows of a prefill tile.
        block_m_decode: of a decode tile.
        block_n: keys of a tile of either class.
        num_warps, num_stages: as Triton has them; stages are K/V tiles in flight.
        ctas_per_sm: programs a multiprocessor holds at once.
        items_per_worker: most items that a program's share of a class is cut into.
        split_cost: keys' worth of starting an item and joining its state.
    """

    block_m: int
    block_m_decode: int
    block_n: int
    num_warps: int
    num_stages: int
    ctas_per_sm: int
    items_per_worker: int = ITEMS_PER_WORKER
    split_cost: int = SPLIT_COST


forced: KernelConfig | None = None
"""Set while configurations are measured; every call but invariant ones then takes it."""


def padded(head_dim: int) -> int:
    """Lanes of a tile that holds this head dim: a power of two, at least 16 (an mma's depth)."""
    return max(16, 1 << (head_dim - 1).bit_length())


def needs_fine_weights(head_dim_v: int, dtype: torch.dtype) -> bool:
    """Whether weights rounded to this dtype would spend the error that a row may have.

    A row's roundings average over its columns: of 20,000 random rows each, bf16 and fp16 over 40 and 300 keys, the
    worst had 1.1 of the allowed error with 32 columns, 1.6 with 8 in bf16 and 2.5 in fp16, but 0.98 with 40.
    """
    return head_dim_v <= NARROW_VALUES and dtype != torch.float32


def shared_bytes(config: KernelConfig, head_dim: int, head_dim_v: int, element_bytes: int) -> int:
    """Estimate of the shared memory a configuration needs: K and V tiles in flight, and Q or P where they pass
    through it."""
    depth, width = padded(head_dim), padded(head_dim_v)
    stages = max(config.num_stages, 1)
    in_flight = stages * config.block_n * (depth + width) * element_bytes
    return in_flight + config.block_m * max(depth, config.block_n) * element_bytes


def configs(head_dim: int, head_dim_v: int, element_bytes: int, device: Gpu) -> Iterator[KernelConfig]:
    """The feasible configurations of a problem, the preferred one first."""
    widest = max(padded(head_dim), padded(head_dim_v))
    for block_m in (128, 64, 32, 16):
        # fp32 accumulators [block_m, widest] plus scores must leave registers for the rest: 64 KiB of 256 a CTA.
        num_warps = 8 if block_m * widest > 64 * 128 else 4
        if block_m * widest > 128 * 128 or (element_bytes == 4 and block_m * widest > 64 * 64):
            continue
        # Larger tiles and more stages would spill in the loops over keys: with the widest heads, and with eight warps
        # where tensor cores take K and V from registers.
        most_keys, most_stages = (64, 3) if widest <= 128 else (16 if inlines_items(device) else 32, 2)
        if num_warps == 8 and widens_in_registers(device):
            most_keys = 32
        for block_n, num_stages in sorted(_SHAPES, key=lambda shape: shape[1] == 1):
            config = KernelConfig(block_m, DECODE_ROWS, block_n, num_warps, num_stages, 1)
            needed = shared_bytes(config, head_dim, head_dim_v, element_bytes)
            if block_n <= most_keys and num_stages <= most_stages and needed <= device.shared_bytes:
                # Eight warps of 255 registers a thread fill a multiprocessor.
                fits = max(1, min(2, device.shared_bytes // needed, 8 // num_warps))
                yield KernelConfig(block_m, DECODE_ROWS, block_n, num_warps, num_stages, fits)


def choose(
    head_dim: int,
    head_dim_v: int,
    dtype: torch.dtype,
    invariant: bool,
    device: Gpu,
    group: int = 1,
    page_size: int = 16,
) -> KernelConfig:
    """The configuration of a problem: a measured one, or the preferred one."""
    if forced is not None and not invariant:
        return forced
    return _chosen(head_dim, head_dim_v, dtype, invariant, device, group, page_size)


@functools.cache
def _chosen(
    head_dim: int, head_dim_v: int, dtype: torch.dtype, invariant: bool, device: Gpu, group: int, page_size: int
) -> KernelConfig:
    first = next(configs(head_dim, head_dim_v, dtype.itemsize, device))
    if not invariant:
        from chunkattn.backends.triton import settings

        key = settings.key_of(head_dim, head_dim_v, dtype, group, page_size, device)
        return settings.measured_config(key, device) or first
    # One tile shape for all: tensor cores may add up in another order in tiles of other shapes.
    return KernelConfig(
        first.block_m, first.block_m, first.block_n, first.num_warps, first.num_stages, first.ctas_per_sm
    )


def widens_in_registers(device: Gpu) -> bool:
    """Whether tensor cores take K and V from registers, so that every warp would widen all of a stored tile."""
    return device.arch not in _MATRICES_IN_SHARED


def inlines_items(device: Gpu) -> bool:
    """Whether items are part of the kernel and not called, so that both classes' addresses take registers."""
    return device.arch in (100, 103)  # called functions have no tensor memory there


def for_scales(config: KernelConfig, per_token: bool, device: Gpu) -> KernelConfig:
    """The configuration for a cache with these scales; the plan does not know of it.

    A scale of each key takes registers that are only there on sm_90, where items are called and K and V not held.
    """
    if not per_token or device.arch == 90:
        return config
    most_keys = 16 if device.arch >= 100 else 32
    return replace(config, block_n=min(config.block_n, most_keys), num_stages=min(config.num_stages, 2))


def work_spec_of(
    device: Gpu,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    head_dim_v: int,
    dtype: torch.dtype,
    *,
    page_size: int = 16,
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
    invariant: bool = False,
    num_splits: int = 0,
) -> WorkSpec:
    """What a plan depends on besides the lengths, from single facts."""
    group = num_q_heads // num_kv_heads
    config = choose(head_dim, head_dim_v, dtype, invariant, device, group, page_size)
    return WorkSpec(
        num_q_heads,
        num_kv_heads,
        causal,
        *window,
        invariant,
        num_splits,
        num_workers=device.num_sms * config.ctas_per_sm,
        items_per_worker=config.items_per_worker,
        tile_rows=config.block_m,
        decode_rows=DECODE_ROWS,
        decode_heads=1,
        kv_tile=config.block_n,
        min_split=MIN_SPLIT,
        invariant_split=INVARIANT_SPLIT,
        # Bytes of a key against the arithmetic of a key of a prefill tile, at BALANCE operations a byte.
        decode_cost=256 * BALANCE * dtype.itemsize // (2 * config.block_m),
        split_cost=config.split_cost,
    )


def work_spec(facts: PlanArgs, device: Gpu | None = None) -> WorkSpec:
    """What the plan of these facts depends on besides the lengths, on the GPU of `facts.seq_lens` or another one."""
    device = device or gpu(facts.seq_lens.device)
    assert device is not None  # supports() was asked before
    return work_spec_of(
        device,
        facts.num_q_heads,
        facts.num_kv_heads,
        facts.head_dim,
        facts.head_dim_v,
        facts.dtype,
        page_size=facts.page_size,
        causal=facts.causal,
        window=(facts.window_left, facts.window_right),
        invariant=facts.invariant,
        num_splits=facts.num_splits,
    )

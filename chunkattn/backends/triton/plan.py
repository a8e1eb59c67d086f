"""The plan on the device: the algorithm of `chunkattn.planning.work` in one program, without a host sync.

Requests are read twice, a block at a time: once for the sums that decide the split lengths, once for the prefix sums.
All arithmetic is in 64 bits; the checksums are sums of mixed words, so the order in which a block adds them up is
nobody's business.
"""

from __future__ import annotations

from dataclasses import astuple

import triton
import triton.language as tl

from chunkattn.args import PlanArgs
from chunkattn.backends.triton.config import work_spec
from chunkattn.planning.work import HEADER_WORDS, MAGIC, MOST_WAVE_SPLITS, WorkSpec

_TABLES = tl.constexpr(HEADER_WORDS)
_MAGIC = tl.constexpr(MAGIC)
_MOST_WAVE_SPLITS = tl.constexpr(MOST_WAVE_SPLITS)
_SMALL_BLOCK, _LARGE_BLOCK = 256, 1024  # requests a step of the loops


def plan(a: PlanArgs) -> None:
    """Fills `a.words` with the plan of `a`'s lengths, on their device."""
    launch(a, work_spec(a))


def launch(a: PlanArgs, spec: WorkSpec) -> None:
    """Fills `a.words` with the plan for a spec."""
    num_requests = a.seq_lens.shape[0]
    small = num_requests <= _SMALL_BLOCK
    plan_kernel[(1,)](
        a.words,
        a.cu_seqlens_q,
        a.seq_lens,
        num_requests,
        *(int(value) for value in astuple(spec)),
        BLOCK=_SMALL_BLOCK if small else _LARGE_BLOCK,
        num_warps=4 if small else 8,
    )


@triton.jit
def _ceil_div(a, b):
    return (a + b - 1) // b


@triton.jit
def _round_up(a, b):
    return _ceil_div(a, b) * b


@triton.jit
def _checksum_term(index, word):
    """Of one (index, word); the finaliser of splitmix64."""
    x = word.to(tl.uint64, bitcast=True) + (index + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return (x ^ (x >> 31)).to(tl.int64, bitcast=True)


@triton.jit
def _requests(cu_seqlens_q, seq_lens, index, mask, group, unit, window_left):
    """Query lengths, packed rows and spans (keys from the first split on) of a block of requests."""
    begin = tl.load(cu_seqlens_q + index, mask=mask, other=0).to(tl.int64)
    end = tl.load(cu_seqlens_q + index + 1, mask=mask, other=0).to(tl.int64)
    kv_len = tl.load(seq_lens + index, mask=mask, other=0).to(tl.int64)
    q_len = end - begin
    history = kv_len - q_len
    first = tl.where((window_left >= 0) & (history > window_left), tl.minimum(history - window_left, kv_len), 0)
    return end, kv_len, q_len, q_len * group, kv_len - first // unit * unit


@triton.jit
def _tile_keys(span, decode_cost, causal, window_left, window_right, tile_tokens):
    """Most keys of a request that one of its row tiles sees, where the classes share the launch."""
    band = window_left + tl.where(causal != 0, 0, window_right) + tile_tokens + 1
    has_band = (decode_cost > 0) & (window_left >= 0) & ((causal != 0) | (window_right >= 0))
    return tl.where(has_band, tl.minimum(span, band), span)


@triton.jit
def _split_length(keys, kv_tile, min_split):
    return tl.maximum(_round_up(keys, kv_tile), min_split)


@triton.jit
def _items_of_share(keys, split_cost, most):
    """floor(sqrt(keys / (2 * split_cost))), 1 to `most`."""
    count = keys * 0 + 1
    while (count < most) & (2 * split_cost * (count + 1) * (count + 1) <= keys):
        count += 1
    return count


@triton.jit
def _shared_lengths(
    decode_keys, prefill_units, prefill_keys, longest, workers, items_per_worker, kv_tile, min_split, cost, split_cost
):
    """Split lengths of classes that share the launch; `chunkattn.planning.work` says why."""
    total = 256 * prefill_keys + cost * decode_keys
    fair_prefill = _ceil_div(total, 256 * workers)
    fair_decode = _ceil_div(total, cost * workers)
    per_worker = _items_of_share(fair_prefill, split_cost, items_per_worker)
    prefill = _ceil_div(fair_prefill, per_worker)
    best = fair_prefill + prefill // 2 + per_worker * split_cost
    if 20 * cost * decode_keys <= total:
        serial = _ceil_div(2 * cost * decode_keys, 256 * workers)
        for splits in range(1, _MOST_WAVE_SPLITS + 1):
            length = _ceil_div(longest, splits)
            keys = length + tl.where(splits > 1, split_cost, 0)
            end = _ceil_div(prefill_units * splits, workers) * keys + serial
            if end <= best:
                best = end
                prefill = tl.where(splits == 1, 0, length)
    if prefill > 0:
        prefill = tl.maximum(prefill, _ceil_div(fair_prefill, items_per_worker))
        prefill = _split_length(prefill, kv_tile, min_split)
    decode_items = _items_of_share(fair_decode, split_cost, 2 * items_per_worker)
    return _split_length(_ceil_div(fair_decode, decode_items), kv_tile, min_split), prefill


@triton.jit(
    do_not_specialize=[
        "num_requests", "num_q_heads", "num_kv_heads", "causal", "window_left", "window_right", "invariant",
        "num_splits", "num_workers", "items_per_worker", "tile_rows", "decode_rows", "decode_heads", "kv_tile",
        "min_split", "invariant_split", "decode_cost", "split_cost",
    ]
)  # fmt: skip
def plan_kernel(
    words, cu_seqlens_q, seq_lens, num_requests,
    num_q_heads, num_kv_heads, causal, window_left, window_right, invariant, num_splits, num_workers, items_per_worker,
    tile_rows, decode_rows, decode_heads, kv_tile, min_split, invariant_split, decode_cost, split_cost,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program. From `num_q_heads` on: the fields of a WorkSpec, in its order."""
    heads, kv_heads = num_q_heads.to(tl.int64), num_kv_heads.to(tl.int64)
    left, right = window_left.to(tl.int64), window_right.to(tl.int64)
    tile, shortest, cost = kv_tile.to(tl.int64), min_split.to(tl.int64), decode_cost.to(tl.int64)
    workers, per_worker = num_workers.to(tl.int64), items_per_worker.to(tl.int64)
    group = heads // kv_heads
    head_groups = _ceil_div(kv_heads, decode_heads)
    unit = tl.where(invariant != 0, invariant_split, kv_tile).to(tl.int64)
    tile_tokens = _ceil_div(tile_rows, group)
    lanes = tl.arange(0, BLOCK)
    zero = heads * 0

    decode_units, decode_keys, prefill_units, prefill_keys, longest = zero, zero, zero, zero, zero
    for begin in range(0, num_requests, BLOCK):
        index = begin + lanes
        mask = index < num_requests
        _end, _kv_len, _q_len, rows, span = _requests(cu_seqlens_q, seq_lens, index, mask, group, unit, left)
        walk = _tile_keys(span, cost, causal, left, right, tile_tokens)
        is_decode = (rows > 0) & (rows <= decode_rows)
        is_prefill = rows > decode_rows
        units = tl.where(is_prefill, _ceil_div(rows, tile_rows) * kv_heads, 0)
        decode_units += tl.sum(is_decode.to(tl.int64)) * head_groups
        decode_keys += tl.sum(tl.where(is_decode, span, 0)) * head_groups
        prefill_units += tl.sum(units)
        prefill_keys += tl.sum(units * walk)
        longest = tl.maximum(longest, tl.max(tl.where(is_prefill, walk, 0)))

    wanted = workers * per_worker
    decode_split, prefill_split = zero, zero
    if invariant != 0:
        decode_split = tl.where(decode_units < wanted, unit, 0)
    elif cost > 0:
        decode_split, prefill_split = _shared_lengths(
            decode_keys, prefill_units, prefill_keys, longest, workers, per_worker, tile, shortest, cost, split_cost
        )
    else:
        decode_split = _split_length(_ceil_div(decode_keys, wanted), tile, shortest)
        if prefill_units < wanted:
            prefill_split = _split_length(_ceil_div(prefill_keys, wanted), tile, shortest)

    count = num_requests.to(tl.int64) + 1
    decode_items = words + _TABLES
    prefill_items = decode_items + count
    partial_base = prefill_items + count
    split_len = partial_base + count
    tl.store(decode_items, zero)
    tl.store(prefill_items, zero)
    tl.store(partial_base, zero)
    decode_total, prefill_total, partial_total = zero, zero, zero
    lengths_sum = zero
    tables_sum = _checksum_term(zero, zero) + _checksum_term(count, zero) + _checksum_term(2 * count, zero)
    for begin in range(0, num_requests, BLOCK):
        index = begin + lanes
        mask = index < num_requests
        end, kv_len, q_len, rows, span = _requests(cu_seqlens_q, seq_lens, index, mask, group, unit, left)
        walk = _tile_keys(span, cost, causal, left, right, tile_tokens)
        is_decode = (rows > 0) & (rows <= decode_rows)
        length = tl.where(is_decode, decode_split, prefill_split)
        if num_splits > 0:
            length = tl.maximum(_round_up(_ceil_div(span, num_splits), tile), tile)
        else:
            length = tl.where((rows > decode_rows) & (walk < span), 0, length)
        length = tl.where((span <= length) | (rows == 0), 0, length)
        if (cost > 0) & (invariant == 0):
            splits = tl.maximum(_ceil_div(span, tl.maximum(length, 1)), 1)
            length = tl.where(length > 0, _round_up(_ceil_div(span, splits), tile), 0)
        splits = tl.where(length > 0, _ceil_div(span, tl.maximum(length, 1)), 1)
        units = _ceil_div(rows, tile_rows) * kv_heads
        decodes = decode_total + tl.cumsum(tl.where(is_decode, head_groups * splits, 0))
        prefills = prefill_total + tl.cumsum(tl.where(is_decode, 0, units * splits))
        partials = partial_total + tl.cumsum(tl.where(splits > 1, splits * q_len * heads, 0))
        row = index.to(tl.int64)
        tl.store(decode_items + row + 1, decodes, mask=mask)
        tl.store(prefill_items + row + 1, prefills, mask=mask)
        tl.store(partial_base + row + 1, partials, mask=mask)
        tl.store(split_len + row, length, mask=mask)
        terms = _checksum_term(row + 1, decodes) + _checksum_term(count + row + 1, prefills)
        terms += _checksum_term(2 * count + row + 1, partials) + _checksum_term(3 * count + row, length)
        tables_sum += tl.sum(tl.where(mask, terms, 0))
        terms = _checksum_term(2 * row, end) + _checksum_term(2 * row + 1, kv_len)
        lengths_sum += tl.sum(tl.where(mask, terms, 0))
        # Prefix sums never fall, and lanes past the last request add nothing.
        decode_total, prefill_total, partial_total = tl.max(decodes), tl.max(prefills), tl.max(partials)

    tl.store(words, _MAGIC)
    tl.store(words + 1, count - 1)
    tl.store(words + 2, tl.load(cu_seqlens_q + num_requests).to(tl.int64))
    tl.store(words + 3, decode_total)
    tl.store(words + 4, prefill_total)
    tl.store(words + 5, partial_total)
    tl.store(words + 6, lengths_sum)
    tl.store(words + 7, tables_sum)
    tl.store(words + 8, heads)
    tl.store(words + 9, kv_heads)
    tl.store(words + 10, causal.to(tl.int64))
    tl.store(words + 11, left)
    tl.store(words + 12, right)
    tl.store(words + 13, invariant.to(tl.int64))
    tl.store(words + 14, num_splits.to(tl.int64))
    tl.store(words + 15, workers)
    tl.store(words + 16, per_worker)
    tl.store(words + 17, tile_rows.to(tl.int64))
    tl.store(words + 18, decode_rows.to(tl.int64))
    tl.store(words + 19, decode_heads.to(tl.int64))
    tl.store(words + 20, tile)
    tl.store(words + 21, shortest)
    tl.store(words + 22, invariant_split.to(tl.int64))
    tl.store(words + 23, cost)
    tl.store(words + 24, split_cost.to(tl.int64))

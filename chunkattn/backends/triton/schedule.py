"""Work items on the device: an item number of the plan (`chunkattn.planning.work`) to its parts."""

from __future__ import annotations

import triton
import triton.language as tl

from chunkattn.planning.work import HEADER_WORDS

TABLES = tl.constexpr(HEADER_WORDS)
# Words of the header that the kernels read.
NUM_REQUESTS = tl.constexpr(1)
NUM_TOKENS = tl.constexpr(2)
DECODE_TOTAL = tl.constexpr(3)
PREFILL_TOTAL = tl.constexpr(4)
PARTIAL_ROWS = tl.constexpr(5)
SPEC_BEGIN = tl.constexpr(8)
SEARCH_WIDTH = tl.constexpr(128)


@triton.jit
def find_request(ends, number, num_requests):
    """The request that owns an entry: how many of the prefix sums ends[0 … B) are at most `number`.

    Searches 128 ways at a time, so two dependent loads do for 16,384 requests.
    """
    stride = 1
    while stride * SEARCH_WIDTH < num_requests:
        stride *= SEARCH_WIDTH
    low = 0
    while stride > 0:
        index = low + (tl.arange(0, SEARCH_WIDTH) + 1) * stride - 1
        end = tl.load(ends + index, mask=index < num_requests, other=0x7FFFFFFFFFFFFFFF)
        low += tl.sum((end <= number).to(tl.int32)) * stride
        stride = stride // SEARCH_WIDTH
    return low


@triton.jit
def request_lengths(batch, request):
    """First token, query length and KV length of a request."""
    q_begin = tl.load(batch.cu_seqlens_q + request)
    q_len = tl.load(batch.cu_seqlens_q + request + 1) - q_begin
    return q_begin, q_len, tl.load(batch.seq_lens + request)


@triton.jit
def count_splits(plan, request, num_requests, q_len, kv_len, numbers, spec):
    """Split length, origin of the first split and number of splits of a request."""
    length = tl.load(plan + TABLES + 3 * (num_requests + 1) + request).to(tl.int32)
    origin = 0
    if spec.has_left:
        first = kv_len - q_len - numbers.window_left
        unit = spec.invariant_split if spec.invariant else spec.kv_tile
        origin = tl.minimum(tl.maximum(first, 0), kv_len) // unit * unit
    splits = 1
    if length > 0:
        splits = tl.maximum((kv_len - origin + length - 1) // length, 1)
    return length, origin, splits


@triton.jit
def find_item(plan, batch, number, num_requests, is_decode, numbers, spec):
    """The parts of an item.

    Returns:
        request, KV head, first packed row, first and past-last key, split, number of splits.
    """
    skipped = tl.where(is_decode, 0, num_requests + 1)
    items = plan + TABLES + skipped
    request = find_request(items + 1, number, num_requests)
    _q_begin, q_len, kv_len = request_lengths(batch, request)
    length, origin, splits = count_splits(plan, request, num_requests, q_len, kv_len, numbers, spec)
    rest = (number - tl.load(items + request)).to(tl.int32)
    split = rest % splits
    rest = rest // splits
    # Row tiles run from the last to the first: under a causal mask the last rows see most keys.
    tiles = tl.where(is_decode, 1, (q_len * spec.group + spec.block_m - 1) // spec.block_m)
    kv_head = rest // tiles
    row_begin = (tiles - 1 - rest % tiles) * spec.block_m
    kv_begin = origin + split * length
    kv_end = tl.where(splits > 1, tl.minimum(kv_begin + length, kv_len), kv_len)
    return request, kv_head, row_begin, kv_begin, kv_end, split, splits


@triton.jit
def takes_decode(decode_left, decode_total, prefill_left, prefill_total, num_workers):
    """As `chunkattn.planning.work.takes_decode`."""
    larger_share = 4 * decode_left * prefill_total >= (4 * prefill_left + num_workers) * decode_total
    return (decode_left > 0) & ((prefill_left <= 0) | larger_share)


@triton.jit
def plan_fits(plan, expected_spec, batch, partials, num_requests, spec):
    """Whether a plan was made for this call's facts, its batch has as many tokens, and its partial states fit."""
    index = tl.arange(0, 32)
    mask = index < TABLES - SPEC_BEGIN
    made_for = tl.load(plan + SPEC_BEGIN + index, mask=mask, other=0)
    expected = tl.load(expected_spec + index, mask=mask, other=0)
    fits = tl.sum((made_for != expected).to(tl.int32)) == 0
    fits = fits & (tl.load(plan + NUM_REQUESTS) == num_requests)
    fits = fits & (tl.load(plan + NUM_TOKENS) == tl.load(batch.cu_seqlens_q + num_requests))
    return fits & (tl.load(plan + PARTIAL_ROWS) <= partials.capacity)

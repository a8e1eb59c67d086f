"""How a step is cut into work items, in plain integers.

The same algorithm stands in ``csrc/include/chunkattn/sched/plan.h`` and, for GPUs, in a kernel; tests compare them word
by word. Two classes of requests: *decode* (at most ``decode_rows`` packed query rows a KV head) and *prefill* (more).
Items are never written out, a plan keeps prefix sums over requests. A packed row is
``token_in_request * group + head_in_group``.

**Length of items.** With ``decode_cost = 0`` the classes are planned apart: long KV is split until every worker has
``items_per_worker`` items of a class. With a ``decode_cost`` they share the launch: a worker's fair share of all keys,
decodes' weighed by their cost, is cut into as many items as keep the loss at the end (half an item) and the costs of
splitting (``split_cost`` an item) together smallest, which is k = sqrt(share / (2 * split_cost)). A step of prefill
alone has nothing to fill its last wave with; there the splits are chosen that fit whole waves best.

**Order.** Workers draw items by number from two queues. Prefill alone leaves memory idle, decode alone arithmetic, so
both must last until the end: a worker takes the class of which more is left (`takes_decode`), whatever its speed. That
reaches ``max(M, C + M/r)`` (M, C: all decodes, all prefill alone; r: how far beyond its fair share of the bandwidth a
worker gets) without knowing r. Within a queue requests come in batch order, then KV heads, then row tiles, then splits,
so that the tiles of a head share its K and V in the cache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from itertools import pairwise
from typing import Any

MAGIC = 0x6368756E6B617474
MOST_WAVE_SPLITS = 16
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class WorkSpec:
    """What a plan depends on besides the lengths; the order of the fields is the layout of the plan's header."""

    num_q_heads: int
    num_kv_heads: int
    causal: bool = True
    window_left: int = -1
    window_right: int = -1
    invariant: bool = False
    num_splits: int = 0  # 0 = planned
    num_workers: int = 1  # cores, or SMs x CTAs per SM
    items_per_worker: int = 4  # work items wanted per worker before splitting stops
    tile_rows: int = 384  # packed rows of a prefill item
    decode_rows: int = 8  # most packed rows of a decode request
    decode_heads: int = 1  # KV heads one decode item spans
    kv_tile: int = 128  # split boundaries are multiples of it
    min_split: int = 256  # no shorter split than this
    invariant_split: int = 2048
    decode_cost: int = 0  # of a key of a decode item, in 1/256 of a key of a full prefill tile; 0 = classes apart
    split_cost: int = 0  # of starting an item and joining its partial state, in keys

    @property
    def group(self) -> int:
        return self.num_q_heads // self.num_kv_heads


HEADER_WORDS = 8 + len(fields(WorkSpec))


@dataclass(frozen=True)
class WorkItem:
    """Some packed query rows of one request against a range of its keys; half-open ranges, absolute key
    positions."""

    request: int
    kv_heads: range
    rows: range
    keys: range
    split: int
    num_splits: int
    is_decode: bool


def plan_words(num_requests: int) -> int:
    """Words (int64) of a plan for `num_requests` requests."""
    return HEADER_WORDS + 4 * num_requests + 3


def spec_of_plan(words: Sequence[int]) -> WorkSpec:
    """What a plan was made with, from its header."""
    values: list[Any] = list(words[HEADER_WORDS - len(fields(WorkSpec)) : HEADER_WORDS])
    made = WorkSpec(*values)
    return replace(made, causal=bool(made.causal), invariant=bool(made.invariant))


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(a: int, b: int) -> int:
    return _ceil_div(a, b) * b


def split_origin(spec: WorkSpec, q_len: int, kv_len: int) -> int:
    """Where the first split of a request begins: the first key any row can see, rounded down to the split unit."""
    first = 0
    if 0 <= spec.window_left < kv_len - q_len:
        first = min(kv_len - q_len - spec.window_left, kv_len)
    unit = spec.invariant_split if spec.invariant else spec.kv_tile
    return first // unit * unit


def checksum(words: Sequence[int]) -> int:
    """Sum over (index, word) of a mixed word, so that any number of threads can add up their parts in any order.

    The mix is the finaliser of splitmix64, which spreads every bit of its input over all of its output.
    """
    total = 0
    for index, word in enumerate(words):
        x = (word + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        total += x ^ (x >> 31)
    total &= _MASK
    return total - (1 << 64) if total >> 63 else total  # as an int64 holds it


def make_plan(spec: WorkSpec, cu_seqlens_q: Sequence[int], seq_lens: Sequence[int]) -> list[int]:
    """The plan as int64 words: header, decode_items[B+1], prefill_items[B+1], partial_base[B+1], split_len[B]."""
    q_lens = [end - begin for begin, end in pairwise(cu_seqlens_q)]
    head_groups = _ceil_div(spec.num_kv_heads, spec.decode_heads)
    wanted = spec.num_workers * spec.items_per_worker
    spans = [kv - split_origin(spec, q, kv) for q, kv in zip(q_lens, seq_lens)]
    rows = [q * spec.group for q in q_lens]
    tiles = [_ceil_div(r, spec.tile_rows) * spec.num_kv_heads for r in rows]
    is_decode = [0 < r <= spec.decode_rows for r in rows]

    decode_units = head_groups * sum(is_decode)
    decode_work = head_groups * sum(span for span, decode in zip(spans, is_decode) if decode)
    prefill_units = sum(t for t, decode in zip(tiles, is_decode) if not decode)
    walks = [_tile_keys(spec, span) for span in spans]
    prefill_work = sum(t * walk for t, walk, decode in zip(tiles, walks, is_decode) if not decode)
    longest = max((walk for walk, r, decode in zip(walks, rows, is_decode) if r and not decode), default=0)

    if spec.invariant:
        decode_split = spec.invariant_split if decode_units < wanted else 0
        prefill_split = 0
    elif spec.decode_cost > 0:
        decode_split, prefill_split = _shared_lengths(spec, decode_work, prefill_work, prefill_units, longest)
    else:
        decode_split = _split_length(spec, _ceil_div(decode_work, wanted))
        prefill_split = 0 if prefill_units >= wanted else _split_length(spec, _ceil_div(prefill_work, wanted))

    decode_items, prefill_items, partial_base, split_len = [0], [0], [0], []
    for q_len, span, walk, row_count, tile_count, decode in zip(q_lens, spans, walks, rows, tiles, is_decode):
        length = decode_split if decode else prefill_split
        if spec.num_splits > 0:
            length = max(_round_up(_ceil_div(span, spec.num_splits), spec.kv_tile), spec.kv_tile)
        elif not decode and walk < span:
            length = 0  # its tiles see a band of the keys; most splits would be empty
        if span <= length or row_count == 0:
            length = 0
        elif length and spec.decode_cost > 0 and not spec.invariant:  # splits of one length, but for rounding
            length = _round_up(_ceil_div(span, _ceil_div(span, length)), spec.kv_tile)
        splits = _ceil_div(span, length) if length else 1
        split_len.append(length)
        decode_items.append(decode_items[-1] + (head_groups * splits if decode else 0))
        prefill_items.append(prefill_items[-1] + (0 if decode else tile_count * splits))
        partial_base.append(partial_base[-1] + (splits * q_len * spec.num_q_heads if splits > 1 else 0))

    tables = decode_items + prefill_items + partial_base + split_len
    lengths = [word for pair in zip(cu_seqlens_q[1:], seq_lens) for word in pair]
    header = [
        MAGIC,
        len(q_lens),
        cu_seqlens_q[-1],
        decode_items[-1],
        prefill_items[-1],
        partial_base[-1],
        checksum(lengths),
        checksum(tables),
        *(int(value) for value in astuple(spec)),
    ]
    return header + tables


def _tile_keys(spec: WorkSpec, span: int) -> int:
    """Most keys of a request that one of its row tiles sees, where the classes share the launch."""
    if spec.decode_cost == 0 or spec.window_left < 0 or not (spec.causal or spec.window_right >= 0):
        return span
    right = 0 if spec.causal else spec.window_right
    return min(span, spec.window_left + right + _ceil_div(spec.tile_rows, spec.group) + 1)


def _split_length(spec: WorkSpec, keys: int) -> int:
    return max(_round_up(keys, spec.kv_tile), spec.min_split)


def _shared_lengths(spec: WorkSpec, decode_work: int, prefill_work: int, units: int, longest: int) -> tuple[int, int]:
    """Split lengths (decode, prefill) of classes that share the launch; prefill's is 0 if nothing is split.

    Args:
        decode_work, prefill_work: keys of all items if nothing were split.
        units: prefill items if nothing were split.
        longest: keys of the longest of them.
    """
    workers, cost = spec.num_workers, spec.decode_cost
    total = 256 * prefill_work + cost * decode_work
    fair_prefill, fair_decode = _ceil_div(total, 256 * workers), _ceil_div(total, cost * workers)
    per_worker = _items_of_share(spec, fair_prefill, spec.items_per_worker)
    prefill_split = _ceil_div(fair_prefill, per_worker)
    # Estimated ends: a share, half an item that somebody waits for, what the splits cost; or whole waves.
    best = fair_prefill + prefill_split // 2 + per_worker * spec.split_cost
    if 20 * cost * decode_work <= total:
        serial = _ceil_div(2 * cost * decode_work, 256 * workers)
        for splits in range(1, MOST_WAVE_SPLITS + 1):
            keys = _ceil_div(longest, splits) + (spec.split_cost if splits > 1 else 0)
            end = _ceil_div(units * splits, workers) * keys + serial
            if end <= best:
                best = end
                prefill_split = 0 if splits == 1 else _ceil_div(longest, splits)
    if prefill_split > 0:
        most = _ceil_div(fair_prefill, spec.items_per_worker)  # keeps the number of splits within its bound
        prefill_split = _split_length(spec, max(prefill_split, most))
    # Decodes' partial states are small, so theirs may be twice as many.
    decode_items = _items_of_share(spec, fair_decode, 2 * spec.items_per_worker)
    return _split_length(spec, _ceil_div(fair_decode, decode_items)), prefill_split


def _items_of_share(spec: WorkSpec, keys: int, most: int) -> int:
    """Items that a worker's share of keys is best cut into: floor(sqrt(keys / (2 * split_cost))), 1 to `most`."""
    count = 1
    while count < most and 2 * spec.split_cost * (count + 1) ** 2 <= keys:
        count += 1
    return count


def takes_decode(decode_left: int, decode_total: int, prefill_left: int, prefill_total: int, num_workers: int) -> bool:
    """Whether a worker that is free takes a decode item: the class of which the larger share is left.

    A quarter of the workers is added to the prefill items that are left: those in progress, on the average half done
    by half of the workers.
    """
    if prefill_left <= 0 or decode_left <= 0:
        return decode_left > 0
    return 4 * decode_left * prefill_total >= (4 * prefill_left + num_workers) * decode_total


def items(
    spec: WorkSpec, words: Sequence[int], cu_seqlens_q: Sequence[int], seq_lens: Sequence[int]
) -> Iterator[WorkItem]:
    """Every item of a plan, decode items first, in the order workers take them within each class."""
    count = len(seq_lens) + 1
    tables = words[HEADER_WORDS:]
    decode_items, prefill_items = tables[:count], tables[count : 2 * count]
    split_len = tables[3 * count :]
    for is_decode, starts in ((True, decode_items), (False, prefill_items)):
        for number in range(starts[-1]):
            request = bisect_right(starts, number) - 1
            yield _item(spec, request, number - starts[request], split_len[request], is_decode, cu_seqlens_q, seq_lens)


def _item(
    spec: WorkSpec,
    request: int,
    rest: int,
    length: int,
    is_decode: bool,
    cu_seqlens_q: Sequence[int],
    seq_lens: Sequence[int],
) -> WorkItem:
    q_len, kv_len = cu_seqlens_q[request + 1] - cu_seqlens_q[request], seq_lens[request]
    origin, rows = split_origin(spec, q_len, kv_len), q_len * spec.group
    num_splits = max(1, _ceil_div(kv_len - origin, length)) if length else 1
    rest, split = divmod(rest, num_splits)
    begin = origin + split * length
    keys = range(begin, min(begin + length, kv_len) if num_splits > 1 else kv_len)
    if is_decode:
        first = rest * spec.decode_heads
        heads = range(first, min(first + spec.decode_heads, spec.num_kv_heads))
        return WorkItem(request, heads, range(rows), keys, split, num_splits, True)
    tiles = _ceil_div(rows, spec.tile_rows)
    head, tile = divmod(rest, tiles)
    first = (tiles - 1 - tile) * spec.tile_rows  # last rows first: under a causal mask they see most keys
    return WorkItem(
        request, range(head, head + 1), range(first, min(first + spec.tile_rows, rows)), keys, split, num_splits, False
    )


def max_partial_rows(spec: WorkSpec, max_tokens: int, max_kv_len: int) -> int:
    """Most partial rows that `make_plan` can ask for, from maxima alone.

    A request that is split spans more than one split length, so its splits number less than twice its share of the
    wanted items: at most ``2 * wanted`` units of each class leave partial states (decodes that share the launch want
    twice as many items).
    """
    all_rows = max_tokens * spec.num_q_heads
    if spec.num_splits > 0:
        return all_rows * spec.num_splits if spec.num_splits > 1 else 0
    wanted = spec.num_workers * spec.items_per_worker
    decode_unit = spec.decode_rows * spec.decode_heads
    most_splits = _ceil_div(max_kv_len, spec.invariant_split if spec.invariant else spec.min_split)
    if most_splits <= 1:
        return 0
    decode_units = wanted * most_splits if spec.invariant else (4 if spec.decode_cost else 2) * wanted
    planned = decode_units * decode_unit + (0 if spec.invariant else 2 * wanted * spec.tile_rows)
    return min(planned, all_rows * most_splits)

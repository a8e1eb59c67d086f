"""Checks of what index tensors, scales and factors hold, and the positions they stand for; they read on the host.

Errors name the request and the column, as the native core's do.
"""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor

from chunkattn.args import AppendArgs, AttentionArgs


def check_attention(a: AttentionArgs) -> tuple[list[int], list[int]]:
    """What attention reads from index tensors and scales; returns the lengths (cu_seqlens_q, seq_lens)."""
    starts, lens = check_lengths(a.cu_seqlens_q, a.seq_lens, a.q.shape[0])
    check_pages(a.block_table, starts, lens, a.k_cache.shape[0], a.k_cache.shape[1], a.window_left)
    if a.tree_mask is not None:
        check_tree(a.tree_mask, starts)
    check_scales(k_scale=a.k_scale, v_scale=a.v_scale)
    return starts, lens


def check_append(a: AppendArgs) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """What append_kv reads from index tensors and scales; returns (token, slot) and (token, rope position) pairs."""
    starts, lens = check_lengths(a.cu_seqlens_q, a.seq_lens, a.k.shape[0], "k")
    check_scales(k_scale=a.k_scale, v_scale=a.v_scale)
    written = slots(a.slot_mapping, a.block_table, starts, lens, a.k_cache.shape[0], a.k_cache.shape[1])
    return written, [] if a.rope_cos is None else rope_positions(a, starts, lens, written)


def check_scales(**named: Tensor | None) -> None:
    """Scales of a tensor or of heads must be numbers above 0. Those of single tokens are not looked at: those of dead
    slots may hold anything.

    Raises:
        ValueError: naming the first wrong entry.
    """
    for arg, scale in named.items():
        if scale is None or scale.dim() == 3:
            continue
        for head, value in enumerate(scale.reshape(-1).tolist()):
            if not 0 < value < math.inf:
                where = f" for head {head}" if scale.dim() else ""
                raise ValueError(f"{arg}: expected finite numbers above 0, got {value:g}{where}")


def check_factors(**named: Tensor | None) -> None:
    """Slopes and sinks must hold numbers; sinks also -inf, which is no sink.

    Raises:
        ValueError: naming the first wrong entry.
    """
    for arg, tensor in named.items():
        if tensor is None:
            continue
        right = tensor.isfinite()
        if arg == "sinks":
            right |= tensor == -math.inf
        if not right.all():
            index = [int(i) for i in (~right).nonzero()[0]]
            expected = "numbers or -inf" if arg == "sinks" else "numbers"
            raise ValueError(f"{arg}: expected {expected}, got {float(tensor[tuple(index)])} at {index}")


def page_ids(count: int, noun: str = "page id") -> str:
    """What an id may be, in words."""
    return f"a {noun} from 0 to {count - 1}" if count else f"no {noun}, since the pool has no pages"


def check_lengths(
    cu_seqlens_q: Tensor, seq_lens: Tensor, num_tokens: int | None = None, tokens: str = "q"
) -> tuple[list[int], list[int]]:
    """The lengths as lists; the tokens are those of the argument `tokens`.

    Raises:
        ValueError: prefix sums that do not start at 0, fall, or exceed the tokens; a negative KV length.
    """
    starts, lens = cu_seqlens_q.tolist(), seq_lens.tolist()
    if starts[0] != 0:
        raise ValueError(f"cu_seqlens_q: expected 0 first, got {starts[0]}")
    for request, (begin, end) in enumerate(pairwise(starts)):
        if end < begin:
            raise ValueError(f"cu_seqlens_q: expected rising prefix sums, got {begin} then {end} for request {request}")
    if num_tokens is not None and starts[-1] > num_tokens:
        raise ValueError(f"cu_seqlens_q: expected at most {num_tokens} tokens (T of {tokens}), got {starts[-1]}")
    for request, kv_len in enumerate(lens):
        if kv_len < 0:
            raise ValueError(f"seq_lens: expected lengths >= 0, got {kv_len} for request {request}")
    return starts, lens


def check_pages(
    block_table: Tensor, starts: list[int], lens: list[int], num_pages: int, page_size: int, window_left: int
) -> None:
    """Page ids of every position that some row can see must lie in the pool; other columns may hold anything.

    Raises:
        ValueError: a length beyond the table's capacity, or a page id outside the pool.
    """
    table = block_table.tolist()
    capacity = block_table.shape[1] * page_size
    for request, kv_len in enumerate(lens):
        q_len = starts[request + 1] - starts[request]
        if q_len == 0:
            continue
        if kv_len > capacity:
            raise ValueError(
                f"seq_lens: expected at most {capacity} (M·P of block_table), got {kv_len} for request {request}"
            )
        first = max(0, kv_len - q_len - window_left) if window_left >= 0 else 0
        for column in range(first // page_size, -(-kv_len // page_size)):
            if not 0 <= table[request][column] < num_pages:
                raise ValueError(
                    f"block_table: expected {page_ids(num_pages)}, got {table[request][column]} for "
                    f"request {request}, column {column}"
                )


def check_tree(tree_mask: Tensor, starts: list[int]) -> None:
    """A tree mask must have a bit for every new token of the longest request."""
    longest = max((end - begin for begin, end in pairwise(starts)), default=0)
    if tree_mask.shape[1] * 32 < longest:
        raise ValueError(
            f"tree_mask: expected at least {-(-longest // 32)} words for {longest} new tokens, got {tree_mask.shape[1]}"
        )


def slots(
    slot_mapping: Tensor | None, block_table: Tensor, starts: list[int], lens: list[int], num_pages: int, page_size: int
) -> list[tuple[int, int]]:
    """(token, slot) of every token that is written.

    Raises:
        ValueError: a slot outside the pool, a KV length below the query length or beyond the table, a bad page id.
    """
    if slot_mapping is not None:
        for token, slot in enumerate(slot_mapping.tolist()):
            if not -1 <= slot < num_pages * page_size:
                raise ValueError(
                    f"slot_mapping: expected -1 or {page_ids(num_pages * page_size, 'slot')}, got {slot} for "
                    f"token {token}"
                )
        return [(token, slot) for token, slot in enumerate(slot_mapping.tolist()) if slot >= 0]
    check_appended(starts, lens)
    pairs = []
    table = block_table.tolist()
    # Only the pages written to are looked at: earlier ones may have left a sliding window.
    check_pages(block_table, starts, lens, num_pages, page_size, window_left=0)
    for request, kv_len in enumerate(lens):
        first = kv_len - (starts[request + 1] - starts[request])
        for token in range(starts[request], starts[request + 1]):
            position = first + token - starts[request]
            pairs.append((token, table[request][position // page_size] * page_size + position % page_size))
    return pairs


def check_appended(starts: list[int], lens: list[int]) -> None:
    """Appended tokens must be counted in the KV length."""
    for request, kv_len in enumerate(lens):
        q_len = starts[request + 1] - starts[request]
        if kv_len < q_len:
            raise ValueError(
                f"seq_lens: expected at least the query length {q_len}, got {kv_len} for request {request} "
                "(lengths include the tokens being appended)"
            )


def rope_positions(
    a: AppendArgs, starts: list[int], lens: list[int], written: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """(token, position) of every token that RoPE turns: the written ones; a skipped token's position may be garbage."""
    assert a.rope_cos is not None
    if a.rope_positions is not None:
        pairs = list(enumerate(a.rope_positions.tolist()))[: starts[-1]]
    else:
        check_appended(starts, lens)
        pairs = []
        for request, kv_len in enumerate(lens):
            first = kv_len - (starts[request + 1] - starts[request])
            pairs += [(token, first + token - starts[request]) for token in range(starts[request], starts[request + 1])]
    kept = {token for token, _ in written}
    pairs = [(token, position) for token, position in pairs if token in kept]
    for token, position in pairs:
        if not 0 <= position < a.rope_cos.shape[0]:
            raise ValueError(
                f"rope.cos: expected a row for position {position} of token {token}, got {a.rope_cos.shape[0]} rows"
            )
    return pairs


def check_page_ids(arg: str, pages: Tensor, num_pages: int) -> list[int]:
    """Page ids must lie in the pool."""
    ids = pages.tolist()
    for index, page in enumerate(ids):
        if not 0 <= page < num_pages:
            raise ValueError(f"{arg}: expected {page_ids(num_pages)}, got {page} at index {index}")
    return ids


def check_page_targets(arg: str, pages: Tensor, num_pages: int, source: Tensor | None = None) -> None:
    """Written pages must lie in the pool, occur once, and not be read in the same call."""
    ids = check_page_ids(arg, pages, num_pages)
    if len(set(ids)) != len(ids):
        raise ValueError(f"{arg}: expected every page at most once, got {len(ids) - len(set(ids))} repeated")
    if source is not None and set(ids) & set(source.tolist()):
        raise ValueError(
            f"{arg}: expected pages that are not also sources, got {sorted(set(ids) & set(source.tolist()))}"
        )

"""How much an attention step has to do: exact counts of visible pairs, floating-point operations and bytes.

These are the numerators of every rate that is reported. A pair is one query token against one key; counting
pairs exactly (not "half of the square") is what makes the total independent of how a prompt is chunked.
"""

from __future__ import annotations

from collections.abc import Sequence

Window = tuple[int, int]


def visible_pairs(q_len: int, kv_len: int, *, causal: bool = True, window: Window = (-1, -1)) -> int:
    """Number of (query token, key) pairs of one request, bottom-right aligned.

    With causal, no window and ``kv_len >= q_len`` this is ``q*h + q*(q+1)/2`` with ``h = kv_len - q_len`` tokens
    of history.

    Args:
        q_len: query tokens of the step.
        kv_len: keys, including this step's.
        causal: hide keys after the query.
        window: (left, right) inclusive counts beside the query; -1 = unlimited.

    Example:
        >>> visible_pairs(4, 10)
        34
        >>> visible_pairs(1, 10)
        10
        >>> visible_pairs(4, 10, causal=False)
        40
    """
    if q_len < 0 or kv_len < 0:
        raise ValueError(f"q_len, kv_len: expected lengths >= 0, got {q_len}, {kv_len}")
    left, right = window
    if causal:
        right = 0 if right < 0 else min(right, 0)
    history = kv_len - q_len
    # Keys up to the right edge, less the keys beyond the left edge: each is a sum of clamp(a + r, 0, kv_len).
    upto_right = q_len * kv_len if right < 0 else _clamped_ramp(history + right + 1, q_len, kv_len)
    before_left = 0 if left < 0 else _clamped_ramp(history - left, q_len, kv_len)
    return max(0, upto_right - before_left)


def _clamped_ramp(start: int, count: int, high: int) -> int:
    """Sum over r in [0, count) of min(max(start + r, 0), high)."""
    zero = min(max(-start, 0), count)  # rows still at 0
    full = min(max(high - start, 0), count)  # first row that has reached high
    rising = full - zero
    return rising * (start + zero) + rising * (rising - 1) // 2 + (count - full) * high


def flops(
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    num_q_heads: int,
    head_dim: int,
    head_dim_v: int | None = None,
    causal: bool = True,
    window: Window = (-1, -1),
) -> int:
    """Floating-point operations of a step: 2 for each multiply-add of QKᵀ and PV over the visible pairs.

    Example:
        >>> flops([4], [10], num_q_heads=1, head_dim=8, head_dim_v=16)
        1632
    """
    pairs = sum(visible_pairs(q, kv, causal=causal, window=window) for q, kv in zip(q_lens, kv_lens, strict=True))
    return 2 * pairs * num_q_heads * (head_dim + (head_dim if head_dim_v is None else head_dim_v))


def visible_keys(q_len: int, kv_len: int, *, causal: bool = True, window: Window = (-1, -1)) -> int:
    """Number of keys of one request that at least one of its query rows sees."""
    if q_len == 0 or kv_len == 0:
        return 0
    left, right = window
    right = 0 if causal else right
    last = kv_len - 1 if right < 0 else min(kv_len - 1, kv_len - 1 + right)
    first = 0 if left < 0 else max(0, kv_len - q_len - left)
    return max(0, last - first + 1)


def kv_bytes(
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    num_kv_heads: int,
    head_dim: int,
    head_dim_v: int | None = None,
    element_size: int = 2,
    scale_bytes: int = 0,
    causal: bool = True,
    window: Window = (-1, -1),
) -> int:
    """Bytes of K and V that a step must read at least once: every key that some row of its request sees.

    Args:
        q_lens: query tokens of each request.
        kv_lens: keys of each request, including this step's.
        num_kv_heads: KV heads.
        head_dim: of K.
        head_dim_v: of V; None = ``head_dim``.
        element_size: bytes of a cache element.
        scale_bytes: bytes of scales read for each token and head (8 for two fp32 scales per token and head).
        causal: as in the operator.
        window: as in the operator.
    """
    keys = sum(visible_keys(q, kv, causal=causal, window=window) for q, kv in zip(q_lens, kv_lens, strict=True))
    width = head_dim + (head_dim if head_dim_v is None else head_dim_v)
    return keys * num_kv_heads * (width * element_size + scale_bytes)

"""Float64 oracle of paged attention: loops over requests and heads, written to be read and believed.

It shares no code with any backend. What a query row may see is computed here as a set of key positions
built from integer bounds, one row at a time; keys and values are looked up token by token through the
block table, and only where some row sees them, so unread memory cannot take part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Window = tuple[int, int]


def visible_positions(
    q_pos: int,
    first_new: int,
    kv_len: int,
    *,
    causal: bool = True,
    window: Window = (-1, -1),
    tree_row: list[int] | None = None,
) -> Sequence[int]:
    """Key positions that one query row sees, in ascending order.

    Args:
        q_pos: absolute position of the row, ``seq_len - q_len + r``; negative if the chunk is longer than the keys.
        first_new: absolute position of the request's first token of this step, ``seq_len - q_len``.
        kv_len: number of keys of the request.
        causal: keys after ``q_pos`` are hidden.
        window: (left, right) inclusive counts beside ``q_pos``; -1 = unlimited.
        tree_row: packed words of the row; bit ``j`` of word ``w`` shows new token ``32 w + j``. Earlier keys
            (history) are not affected.
    """
    first, last = 0, kv_len - 1
    if causal:
        last = min(last, q_pos)
    left, right = window
    if left >= 0:
        first = max(first, q_pos - left)
    if right >= 0:
        last = min(last, q_pos + right)
    positions = range(first, last + 1)
    if tree_row is None:
        return positions
    return [p for p in positions if p < first_new or _tree_bit(tree_row, p - first_new)]


def _tree_bit(words: list[int], token: int) -> bool:
    word, bit = divmod(token, 32)
    # Python integers: the sign of a 32-bit word is just its top bit.
    return word < len(words) and bool((words[word] % (1 << 32)) >> bit & 1)


def dequantised_row(cache: Tensor, scale: Tensor | None, page: int, slot: int) -> Tensor:
    """Float64 [Hkv, D] of one slot of a pool ``[N, P, Hkv, D]``, times its scale ([] | [Hkv] | [N, P, Hkv])."""
    row = cache[page, slot].to(torch.float32).to(torch.float64)
    if scale is None:
        return row
    if scale.dim() == 3:
        factor = scale[page, slot].to(torch.float64)[:, None]
    elif scale.dim() == 1:
        factor = scale.to(torch.float64)[:, None]
    else:
        factor = scale.to(torch.float64)
    return row * factor


def attention_oracle(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = True,
    window: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of a ragged batch over a paged cache, in float64 on the CPU.

    Arguments are those of :func:`chunkattn.attention`; any device and dtype. Quantised caches are dequantised.

    Returns:
        out [T, Hq, Dv] and lse [T, Hq] (natural log, with the sink), both float64. A row that sees no key
        has out 0 and lse -inf (the sink, if there is one); rows past ``cu_seqlens_q[-1]`` have 0 and -inf. A row
        with a score of +inf is NaN, lse too: inf - inf, as for a score of NaN.
    """
    q, k_cache, v_cache = q.detach().cpu(), k_cache.detach().cpu(), v_cache.detach().cpu()
    k_scale = None if k_scale is None else k_scale.detach().cpu()
    v_scale = None if v_scale is None else v_scale.detach().cpu()
    table, starts, kv_lens = block_table.tolist(), cu_seqlens_q.tolist(), seq_lens.tolist()
    tree = None if tree_mask is None else tree_mask.tolist()
    num_tokens, num_q_heads, head_dim = q.shape
    page_size, num_kv_heads, head_dim_v = k_cache.shape[1], k_cache.shape[2], v_cache.shape[3]
    group = num_q_heads // num_kv_heads
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    sink = None if sinks is None else sinks.detach().cpu().to(torch.float64)
    slopes = None if alibi_slopes is None else alibi_slopes.detach().cpu().to(torch.float64)

    out = torch.zeros(num_tokens, num_q_heads, head_dim_v, dtype=torch.float64)
    lse = torch.full((num_tokens, num_q_heads), -math.inf, dtype=torch.float64)
    for request, kv_len in enumerate(kv_lens):
        begin, end = starts[request], starts[request + 1]
        first_new = kv_len - (end - begin)
        rows = [
            visible_positions(
                first_new + r, first_new, kv_len, causal=causal, window=window,
                tree_row=None if tree is None else tree[begin + r],
            )
            for r in range(end - begin)
        ]  # fmt: skip
        seen = sorted({p for row in rows for p in row})
        column = {p: i for i, p in enumerate(seen)}
        places = [(table[request][p // page_size], p % page_size) for p in seen]
        keys = [dequantised_row(k_cache, k_scale, page, slot) for page, slot in places]
        values = [dequantised_row(v_cache, v_scale, page, slot) for page, slot in places]
        k = torch.stack(keys) if keys else torch.zeros(0, num_kv_heads, head_dim, dtype=torch.float64)
        v = torch.stack(values) if values else torch.zeros(0, num_kv_heads, head_dim_v, dtype=torch.float64)
        key_pos = torch.tensor(seen, dtype=torch.float64)
        sees = torch.zeros(end - begin, len(seen), dtype=torch.bool)
        for r, positions in enumerate(rows):
            sees[r, [column[p] for p in positions]] = True
        for head in range(num_q_heads):
            scores = q[begin:end, head].to(torch.float64) @ k[:, head // group].T * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            if slopes is not None:
                slope = slopes[head] if slopes.dim() == 1 else slopes[request, head]
                q_pos = torch.arange(first_new, kv_len, dtype=torch.float64)
                scores = scores + slope * (key_pos[None, :] - q_pos[:, None])
            head_sink = torch.empty(0, dtype=torch.float64) if sink is None else sink[head : head + 1]
            state = _softmax_rows(scores, sees, v[:, head // group], head_sink)
            out[begin:end, head], lse[begin:end, head] = state
    return out, lse


def _softmax_rows(scores: Tensor, sees: Tensor, values: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax and weighted sum of one head: scores and sees [rows, n], values [n, Dv], sink [1] or [0]."""
    hidden = torch.where(sees, scores, -math.inf)
    lse = torch.logsumexp(torch.cat([hidden, sink.expand(len(scores), -1)], 1), 1)
    if not sees.shape[1]:
        return torch.zeros(len(scores), values.shape[1], dtype=torch.float64), lse
    lse = torch.where(sees.any(1) & (lse == math.inf), math.nan, lse)  # inf - inf, where logsumexp says inf
    empty = ~sees.any(1) | (lse == -math.inf)
    weights = torch.exp(hidden - torch.where(empty, 0.0, lse)[:, None])
    if torch.isfinite(values).all():
        out = weights @ values
    else:  # a hidden value must not meet its weight 0: 0 * NaN
        out = torch.stack([w[see] @ values[see] for w, see in zip(weights, sees, strict=True)])
    out[empty] = 0.0
    return out, lse


def merge_states_oracle(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Merges two partial states [T, H, Dv], [T, H] in float64; a state with lse -inf takes no part, even if NaN."""
    num_tokens, num_heads, head_dim_v = out_a.shape
    out = torch.zeros(num_tokens, num_heads, head_dim_v, dtype=torch.float64)
    lse = torch.full((num_tokens, num_heads), -math.inf, dtype=torch.float64)
    for token in range(num_tokens):
        for head in range(num_heads):
            states = [
                (float(state_lse[token, head]), state_out[token, head].to(torch.float64))
                for state_out, state_lse in ((out_a, lse_a), (out_b, lse_b))
                if float(state_lse[token, head]) != -math.inf
            ]
            if not states:
                continue
            highest = max(weight for weight, _ in states)
            weights = [math.exp(weight - highest) for weight, _ in states]
            total = math.fsum(weights)
            out[token, head] = sum(w / total * state for w, (_, state) in zip(weights, states, strict=True))
            lse[token, head] = highest + math.log(total)
    return out, lse

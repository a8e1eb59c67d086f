"""The mask, three faces: which keys a tile of rows can see at all, which ones all of them see, and who sees what."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def visible_range(first_pos, last_pos, kv_len, numbers, spec):
    """Keys [begin, end) that any row at first_pos … last_pos can see."""
    begin, end = 0, kv_len
    if spec.has_left:
        begin = tl.maximum(first_pos - numbers.window_left, 0)
    if spec.causal:
        end = tl.minimum(end, last_pos + 1)
    if spec.has_right:
        end = tl.minimum(end, last_pos + numbers.window_right + 1)
    return begin, end


@triton.jit
def full_range(first_pos, last_pos, first_new, kv_len, numbers, spec):
    """Keys [begin, end) that every row at first_pos … last_pos sees, whatever its tree mask says."""
    begin, end = 0, kv_len
    if spec.has_left:
        begin = tl.maximum(last_pos - numbers.window_left, 0)
    if spec.causal:
        end = tl.minimum(end, first_pos + 1)
    if spec.has_right:
        end = tl.minimum(end, first_pos + numbers.window_right + 1)
    if spec.has_tree:
        end = tl.minimum(end, first_new)
    return begin, end


@triton.jit
def keep(q_pos, kv_pos, live, token, row_valid, first_new, extras, numbers, spec):
    """Who sees what: [BM, BN]. `live` [BN] are keys that some row sees; `token` [BM] are rows of the tree mask."""
    seen = live[None, :] & row_valid[:, None]
    if spec.causal:
        seen = seen & (kv_pos[None, :] <= q_pos[:, None])
    if spec.has_left:
        seen = seen & (kv_pos[None, :] >= (q_pos - numbers.window_left)[:, None])
    if spec.has_right:
        seen = seen & (kv_pos[None, :] <= (q_pos + numbers.window_right)[:, None])
    if spec.has_tree:
        new = kv_pos - first_new
        words = extras.tree_mask + (token.to(tl.int64) * extras.tree_stride_token)[:, None] + (new // 32)[None, :]
        bits = tl.load(words, mask=seen & (new >= 0)[None, :], other=-1)
        seen = seen & (((bits >> (new % 32)[None, :]) & 1) == 1)
    return seen

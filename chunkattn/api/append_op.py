"""`append_kv`."""

from __future__ import annotations

from torch import Tensor

from chunkattn import ops, validate
from chunkattn.args import AppendArgs
from chunkattn.types import Rope


def append_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    *,
    slot_mapping: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    rope: Rope | None = None,
    q: Tensor | None = None,
    backend: str | None = None,
) -> None:
    """Writes the step's keys and values into the paged pool, optionally with RoPE and quantisation, in one pass.

    Token r of a request goes to position ``seq_len - q_len + r``: slot ``position % P`` of page ``block_table[i,
    position // P]``.

    Args:
        k, v: [T, Hkv, D] and [T, Hkv, Dv] bf16, fp16 or fp32; D and Dv from 1 to 256, not only multiples of 8.
        k_cache, v_cache: the pool as in `attention`; written. Two views of one fused pool are fine, but what is written
            (both pools, token scales, q) must share no element with another argument.
        block_table, cu_seqlens_q, seq_lens: as in `attention`. Padding tokens past ``cu_seqlens_q[B]`` are not
            written unless `slot_mapping` says so.
        slot_mapping: int32 or int64 [≤ T], ``page * P + slot`` of each token, -1 = skip; replaces the derived
            slots. Tokens past its end are not written; a token that is not written is not rotated either. Padding
            tokens for which it names a slot are stored as they are, since they have no position.
        k_scale, v_scale: fp32. [] and [Hkv], finite and above 0, are read: stored = round(clamp(x / scale)), to nearest
            even. [N, P, Hkv] is written: every token and head gets scale = max|x| / largest stored value (dynamic
            quantisation). None is scale 1.
        rope: rotates k before it is stored, and q in place.
        q: [T, Hq, D] rotated in place; needs `rope`.
        backend: as in `attention`.

    Raises:
        ValueError, TypeError: as `attention`; nothing has been written. On the CPU also a slot outside the pool
            or a scale that is none.

    Example:
        See `attention`.
    """
    validate.tensors(
        k=k,
        v=v,
        k_cache=k_cache,
        v_cache=v_cache,
        block_table=block_table,
        cu_seqlens_q=cu_seqlens_q,
        seq_lens=seq_lens,
    )
    cos = sin = positions = None
    interleaved = False
    if rope is not None:
        if not isinstance(rope, Rope):
            raise TypeError(f"rope: expected a chunkattn.Rope, got {type(rope).__name__}")
        cos, sin, positions, interleaved = rope.cos, rope.sin, rope.positions, rope.interleaved
    arguments = (
        k,
        v,
        k_cache,
        v_cache,
        block_table,
        cu_seqlens_q,
        seq_lens,
        slot_mapping,
        k_scale,
        v_scale,
        q,
        cos,
        sin,
        positions,
        interleaved,
        backend,
    )
    try:
        ops.append_kv(*arguments)
    except RuntimeError:
        validate.argument_types(AppendArgs._make(arguments))
        raise

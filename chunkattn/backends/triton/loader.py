"""Loading: queries by packed row, keys and values through the page table, and what quantised numbers stand for."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_queries(queries, token, head, row_valid, spec):
    """Packed query rows of absolute `token` [BM] and query `head` [BM]: [BM, depth], zeros where not valid."""
    lanes = tl.arange(0, spec.depth)
    offset = token.to(tl.int64) * queries.stride_token + head.to(tl.int64) * queries.stride_head
    mask = row_valid[:, None]
    if spec.depth != spec.head_dim:
        mask = mask & (lanes < spec.head_dim)[None, :]
    return tl.load(queries.ptr + offset[:, None] + lanes[None, :], mask=mask, other=0.0)


@triton.jit
def find_slots(batch, request, start, live, MASKED: tl.constexpr, spec):
    """Page [BN] or [1] and slot [BN] of the keys start … start + BN; only `live` [BN] ones are looked up if MASKED.

    A page that holds whole tiles is looked up once a tile; else every key looks up its own.
    """
    table = batch.block_table + request.to(tl.int64) * batch.table_stride_request
    if spec.page_size % spec.block_n == 0:
        # Tiles begin at multiples of their length, so a tile lies in one page, and its first key may be dead while
        # others live: the page is theirs all the same.
        page = tl.load(table + (start // spec.page_size).to(tl.int64) * batch.table_stride_column)
        slot = start % spec.page_size + tl.arange(0, spec.block_n)
        return page.to(tl.int64) + tl.zeros([1], tl.int64), slot
    else:
        position = start + tl.arange(0, spec.block_n)
        column = (position // spec.page_size).to(tl.int64) * batch.table_stride_column
        if MASKED:
            page = tl.load(table + column, mask=live, other=0)
        else:
            page = tl.load(table + column)
        return page.to(tl.int64), position % spec.page_size


@triton.jit
def load_tile(pool, page, slot, kv_head, live, MASKED: tl.constexpr, DIM: tl.constexpr, LANES: tl.constexpr, spec):
    """Stored keys or values [BN, LANES] at (page, slot) of a KV head; zeros where not `live` and past DIM."""
    lanes = tl.arange(0, LANES)
    head = kv_head.to(tl.int64) * pool.stride_head
    offset = page * pool.stride_page + slot.to(tl.int64) * pool.stride_slot + head
    pointers = pool.ptr + offset[:, None] + lanes[None, :]
    if MASKED:
        mask = live[:, None]
        if LANES != DIM:
            mask = mask & (lanes < DIM)[None, :]
        return tl.load(pointers, mask=mask, other=0)
    elif LANES != DIM:
        return tl.load(pointers, mask=(lanes < DIM)[None, :], other=0)
    else:
        return tl.load(pointers)


@triton.jit
def load_one(pool, batch, request, position, kv_head, DIM: tl.constexpr, LANES: tl.constexpr, spec):
    """Page and slot [1] of one key, and what is stored there [1, LANES]; zeros past DIM."""
    table = batch.block_table + request.to(tl.int64) * batch.table_stride_request
    page = tl.load(table + (position // spec.page_size).to(tl.int64) * batch.table_stride_column)
    page = page.to(tl.int64) + tl.zeros([1], tl.int64)
    slot = position % spec.page_size + tl.zeros([1], tl.int32)
    return page, slot, load_tile(pool, page, slot, kv_head, slot >= 0, True, DIM, LANES, spec)


@triton.jit
def load_token_scale(scale, page, slot, kv_head, live, MASKED: tl.constexpr):
    """Scales [BN] of the keys at (page, slot); 0 where not `live`."""
    head = kv_head.to(tl.int64) * scale.stride_head
    offset = page * scale.stride_page + slot.to(tl.int64) * scale.stride_slot + head
    if MASKED:
        return tl.load(scale.ptr + offset, mask=live, other=0.0)
    else:
        return tl.load(scale.ptr + offset)


@triton.jit
def load_scale(scale, kv_head, MODE: tl.constexpr):
    """The factor of a whole KV head: per tensor or per head; 1 where scales are per token or there is none."""
    if MODE == "tensor":
        return tl.load(scale.ptr)
    elif MODE == "head":
        return tl.load(scale.ptr + kv_head.to(tl.int64) * scale.stride_head)
    else:
        return 1.0


@triton.jit
def split_scale(scale):
    """A scale as (power of two with its sign, fraction in [1, 2)).

    Values times the power stay exact, weights times the fraction are rounded once and stay in fp16's range: a weight
    times a whole scale may fall below it.
    """
    bits = scale.to(tl.int32, bitcast=True)
    power = (bits & ~0x7FFFFF).to(tl.float32, bitcast=True)
    fraction = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    return power, fraction


@triton.jit
def widen(stored, TARGET: tl.constexpr, STORAGE: tl.constexpr):
    """Stored numbers as TARGET (bf16, fp16 or fp32); exact, NaN and infinities kept.

    fp8 is widened by shifting its bits into those of an fp16 number, on every architecture: sm_80 and sm_86 have no
    conversion, and Triton refuses the type there.
    """
    if STORAGE == "same":
        return stored
    elif STORAGE == "int8":
        return stored.to(tl.float32).to(TARGET)
    elif STORAGE == "e5m2":
        return (stored.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(TARGET)
    else:
        tl.static_assert(STORAGE == "e4m3", "a storage format without a rule")
        # Sign, 4 exponent bits of bias 7 and 3 of fraction, moved to where the wider format has them; that format's
        # bias makes it 2^-8 (fp16) or 2^-120 (bf16) of the number, also where it is subnormal.
        extended = stored.to(tl.int8, bitcast=True).to(tl.int16)
        if TARGET == tl.float16:
            number = ((extended << 7) & -0x4080).to(tl.float16, bitcast=True) * 256.0
        else:
            number = ((extended << 4) & -0x7810).to(tl.bfloat16, bitcast=True) * 1329227995784915872903807060280344576.0
        return tl.where((stored & 0x7F) == 0x7F, float("nan"), number).to(TARGET)


@triton.jit
def share(widened):
    """The same numbers, in the layout in which they were loaded: each was widened by one thread.

    The compiler would rather hand the stored numbers to the tensor cores' layout, which repeats them in every warp, and
    widen them there. It moves no conversion of layout across an instruction that may have effects.
    """
    if widened.dtype == tl.float32:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [widened], widened.dtype, is_pure=False, pack=1)
    else:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [widened], widened.dtype, is_pure=False, pack=2)

"""Builds the tensors of a case: scattered pages, poisoned dead memory, garbage table columns, any strides.

What a case's requests contain depends on its seed alone; where the pages lie depends on ``page_seed`` and what
unread memory holds on ``poison``. So the same problem can be laid out in several ways and compared bit by bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from chunkattn.testing.case import AttentionCase
from chunkattn.testing.inputs import AttentionInputs, prefix_sums
from chunkattn.testing.oracle import visible_positions
from chunkattn.testing.quantization import QUANTIZED_DTYPES, dynamic_scale, largest_value, quantize

Poison = Literal["nan", "inf", "zero", "garbage"]


@dataclass(frozen=True)
class Contents:
    """What a case's requests hold before it is laid out.

    Attributes:
        q: [T, Hq, D]; rows past the last request are ignored.
        keys: per request [kv_len, Hkv, D].
        values: per request [kv_len, Hkv, Dv].
    """

    q: Tensor
    keys: list[Tensor]
    values: list[Tensor]


def random_contents(case: AttentionCase) -> Contents:
    """Normal q, k and v."""
    generator = torch.Generator().manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return Contents(
        q=normal(case.num_tokens, case.num_q_heads, case.head_dim),
        keys=[normal(n, case.num_kv_heads, case.head_dim) for n in case.kv_lens],
        values=[normal(n, case.num_kv_heads, case.value_dim) for n in case.kv_lens],
    )


def build(
    case: AttentionCase,
    contents: Contents | None = None,
    *,
    device: torch.device | str = "cpu",
    poison: Poison = "nan",
    page_seed: int = 0,
) -> AttentionInputs:
    """Makes the tensors of a case.

    Args:
        case: what to build.
        contents: what the requests hold; None = :func:`random_contents`.
        device: where the result lies.
        poison: what dead slots, unallocated pages and pages that no row sees hold.
        page_seed: order of the physical pages; the problem itself does not depend on it.
    """
    contents = random_contents(case) if contents is None else contents
    generator = torch.Generator().manual_seed(case.seed + 1)
    q = _make_q(case, contents.q)
    tree_mask = _make_tree_mask(case, generator)
    slopes = _make_slopes(case, generator)
    sinks = torch.randn(case.num_q_heads, generator=generator) + 1.0 if case.sinks else None

    num_pages = sum(case.pages_of(r) for r in range(len(case.kv_lens))) + case.spare_pages
    table, pages = _make_block_table(case, num_pages, page_seed)
    k_cache, v_cache = _make_pools(case, num_pages)
    poison_(k_cache, poison)
    poison_(v_cache, poison)
    k_scale = _fill_pool(case, k_cache, contents.keys, pages, poison, 1.0)
    v_scale = _fill_pool(case, v_cache, contents.values, pages, poison, 1.5)
    moved = [
        None if t is None else _move(t, device)
        for t in (q, k_cache, v_cache, table, slopes, sinks, tree_mask, k_scale, v_scale)
    ]
    q, k_cache, v_cache, table, slopes, sinks, tree_mask, k_scale, v_scale = moved  # type: ignore[assignment]
    return AttentionInputs(
        case=case,
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        block_table=table,
        cu_seqlens_q=prefix_sums(case.q_lens, device),
        seq_lens=torch.tensor(case.kv_lens, dtype=torch.int32, device=device),
        alibi_slopes=slopes,
        sinks=sinks,
        tree_mask=tree_mask,
        k_scale=k_scale,
        v_scale=v_scale,
    )


def poison_(tensor: Tensor, poison: Poison) -> None:
    """Fills the whole storage behind a tensor (spare lanes, other layers and all) with a poison value."""
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    raw = whole.view(torch.uint8)
    if poison == "garbage":
        raw.copy_(torch.randint(0, 256, raw.shape, generator=torch.Generator().manual_seed(99), dtype=torch.uint8))
    elif poison == "zero":
        raw.zero_()
    elif tensor.dtype == torch.float8_e4m3fn:
        raw.fill_(0x7F if poison == "nan" else 0xFE)  # no infinity: the largest negative number
    elif tensor.dtype == torch.float8_e5m2:
        raw.fill_(0x7F if poison == "nan" else 0x7C)
    elif tensor.dtype == torch.int8:
        raw.fill_(127 if poison == "nan" else 128)
    else:
        whole.fill_(math.nan if poison == "nan" else math.inf)


def _move(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Moves the storage, so that strides, gaps and offsets survive."""
    if torch.device(device).type == "cpu":
        return tensor
    storage = tensor.untyped_storage().to(device=torch.device(device))
    moved = torch.empty(0, dtype=tensor.dtype, device=device)
    return moved.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[call-overload]


def _make_q(case: AttentionCase, rows: Tensor) -> Tensor:
    shape = (case.num_tokens, case.num_q_heads, case.head_dim)
    values = rows.to(case.dtype).clone()
    values[sum(case.q_lens) :] = math.nan
    if case.q_layout == "contiguous":
        return values
    if case.q_layout == "head_major":
        return values.transpose(0, 1).contiguous().transpose(0, 1)
    if case.q_layout == "offset":
        storage = torch.full((values.numel() + 1,), math.nan, dtype=case.dtype)
        view = storage[1:].view(shape)
    else:
        rows = torch.full((shape[0], shape[1] + 2 * case.num_kv_heads, shape[2]), math.nan, dtype=case.dtype)
        view = rows[:, : shape[1]]
    view.copy_(values)
    return view


def _make_tree_mask(case: AttentionCase, generator: torch.Generator) -> Tensor | None:
    if not case.tree:
        return None
    words = max(1, math.ceil(max(case.q_lens, default=0) / 32)) + 1
    bits = torch.randint(-(2**31), 2**31, (case.num_tokens, words), generator=generator, dtype=torch.int64)
    return bits.to(torch.int32)


def _make_slopes(case: AttentionCase, generator: torch.Generator) -> Tensor | None:
    if case.alibi is None:
        return None
    slopes = torch.exp2(-8.0 * torch.arange(1, case.num_q_heads + 1) / case.num_q_heads)
    if not case.causal:
        # Keys after the query get a positive bias; keep it where float32 still resolves the scores.
        slopes = slopes * min(1.0, 16.0 / max(1, 1, *case.kv_lens))
    if case.alibi == "request":
        slopes = slopes * (0.5 + torch.rand(len(case.q_lens), 1, generator=generator))
    return slopes.to(torch.float32)


def _make_block_table(case: AttentionCase, num_pages: int, page_seed: int) -> tuple[Tensor, list[list[int | None]]]:
    """The table [B, M], and for each request the page of each of its logical pages, None if no row sees it."""
    generator = torch.Generator().manual_seed(1000 + page_seed)
    free = torch.randperm(num_pages, generator=generator).tolist()
    columns = max((case.pages_of(r) for r in range(len(case.kv_lens))), default=0) + case.spare_columns
    # Spare columns hold what an engine may have left there; the row stride is larger than the row.
    wide = torch.tensor([-1, 2**31 - 1, num_pages, 0, -(2**31)], dtype=torch.int32).repeat(
        len(case.kv_lens), columns // 5 + 2
    )
    table = wide[:, 1 : 1 + columns]
    pages: list[list[int | None]] = []
    for request, (q_len, kv_len) in enumerate(zip(case.q_lens, case.kv_lens, strict=True)):
        first_new = kv_len - q_len
        needed: set[int] = set()
        for row in range(q_len):
            # The tree mask is left out: this step's tokens have been appended whether or not anybody looks at them.
            seen = visible_positions(first_new + row, first_new, kv_len, causal=case.causal, window=case.window)
            if seen:
                needed.update(range(seen[0] // case.page_size, seen[-1] // case.page_size + 1))
        own: list[int | None] = []
        for column in range(case.pages_of(request)):
            page = free.pop()
            table[request, column] = page
            if column not in needed and request % 2:
                table[request, column] = -1
            own.append(page if column in needed else None)
        pages.append(own)
    return table, pages


def _make_pools(case: AttentionCase, num_pages: int) -> tuple[Tensor, Tensor]:
    n, p, h, d, dv = num_pages, case.page_size, case.num_kv_heads, case.head_dim, case.value_dim
    dtype, wide = case.cache_dtype, max(d, dv)
    if case.layout == "nhd":
        return torch.empty(n, p, h, d, dtype=dtype), torch.empty(n, p, h, dv, dtype=dtype)
    if case.layout == "hnd":
        k, v = torch.empty(n, h, p, d, dtype=dtype), torch.empty(n, h, p, dv, dtype=dtype)
        return k.transpose(1, 2), v.transpose(1, 2)
    if case.layout == "lanes":
        k, v = torch.empty(n, p, h, d + 8, dtype=dtype), torch.empty(n, p, h, dv + 8, dtype=dtype)
        return k[..., :d], v[..., :dv]
    pool = torch.empty(n, 2, p, h, wide, dtype=dtype)
    if case.layout == "layers":
        pool = torch.empty(n, 3, 2, p, h, wide, dtype=dtype)[:, 1]
    return pool[:, 0, ..., :d], pool[:, 1, ..., :dv]


def _fill_pool(
    case: AttentionCase,
    pool: Tensor,
    rows: list[Tensor],
    pages: list[list[int | None]],
    poison: Poison,
    slack: float,
) -> Tensor | None:
    """Writes each request's rows [kv_len, Hkv, D] into its pages; returns the scale, if the case has one.

    ``slack`` >= 1 makes fixed scales larger than they need be.
    """
    scale = _make_scale(case, pool, rows, slack)
    if scale is not None and scale.dim() == 3:
        poison_(scale, poison)
    for request_rows, request_pages in zip(rows, pages, strict=True):
        token_scale = None
        factor: Tensor | float = 1.0
        if scale is not None and scale.dim() == 3:
            token_scale = _token_scale(request_rows, pool.dtype)
            factor = token_scale[..., None]
        elif scale is not None:
            factor = scale if scale.dim() == 0 else scale[:, None]
        stored = quantize(request_rows, factor, pool.dtype)
        for column, page in enumerate(request_pages):
            if page is None:
                continue
            tokens = slice(column * case.page_size, min((column + 1) * case.page_size, len(stored)))
            pool[page, : tokens.stop - tokens.start] = stored[tokens]
            if scale is not None and token_scale is not None:
                scale[page, : tokens.stop - tokens.start] = token_scale[tokens]
    return scale


def _token_scale(chunk: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype in QUANTIZED_DTYPES:
        return dynamic_scale(chunk, dtype)
    return 0.5 + chunk.float().abs().mean(-1)


def _make_scale(case: AttentionCase, pool: Tensor, rows: list[Tensor], slack: float) -> Tensor | None:
    if case.scale_mode == "none":
        return None
    if case.scale_mode == "token_head":
        return torch.empty(pool.shape[:3], dtype=torch.float32)
    amax = max((float(r.abs().max()) for r in rows if r.numel()), default=1.0)
    quantized = pool.dtype in QUANTIZED_DTYPES
    # A plain pool may carry scales too. The slack of K and V differs, so that swapped scales show.
    base = slack * (amax / largest_value(pool.dtype) if quantized else 0.7)
    if case.scale_mode == "tensor":
        return torch.tensor(base, dtype=torch.float32)
    return base * (1.0 + 0.25 * torch.arange(case.num_kv_heads, dtype=torch.float32))

"""copy_pages, gather_pages, scatter_pages: whole pages moved bit for bit, through any strides.

A page is taken as rows of lanes, elements as integers as wide as both sides' alignment allows; the inner dims of both
sides are joined where they lie alike.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from chunkattn.env import SETTINGS
from chunkattn.planning import contents

_BLOCK_BYTES = 16384  # of a program
_MOST_LANES = 2048
_WARPS = 4
_ROW_DIMS = 3
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Side(NamedTuple):
    """Where pages lie; strides in elements."""

    ptr: Tensor
    pages: Tensor | None  # [n] page of each move, None: one after the other
    pages_stride: int
    num_pages: int
    stride_page: int
    stride_0: int
    stride_1: int
    stride_2: int
    stride_lane: int


def copy_pages(cache: Tensor, source: Tensor, target: Tensor) -> None:
    """cache[target] = cache[source]; no page is both."""
    if SETTINGS.debug:
        contents.check_page_ids("source", source, cache.shape[0])
        contents.check_page_targets("target", target, cache.shape[0], source)
    _move(cache, source, cache, target, source.shape[0])


def gather_pages(cache: Tensor, pages: Tensor, out: Tensor) -> None:
    """out = cache[pages]."""
    if SETTINGS.debug:
        contents.check_page_ids("pages", pages, cache.shape[0])
    _move(cache, pages, out, None, pages.shape[0])


def scatter_pages(block: Tensor, cache: Tensor, pages: Tensor) -> None:
    """cache[pages] = block."""
    if SETTINGS.debug:
        contents.check_page_targets("pages", pages, cache.shape[0])
    _move(block, None, cache, pages, pages.shape[0])


def _move(source: Tensor, source_pages: Tensor | None, target: Tensor, target_pages: Tensor | None, count: int) -> None:
    if count == 0 or source.numel() == 0 or target.numel() == 0:
        return
    source, target = _as_integers(source, target)
    dims = _joined(source, target)
    if len(dims) > _ROW_DIMS + 1:  # more dims than a kernel walks: one launch for each index of the first
        dim = next(dim for dim in range(1, source.dim()) if source.shape[dim] > 1)
        for index in range(source.shape[dim]):
            _move(source.select(dim, index), source_pages, target.select(dim, index), target_pages, count)
        return
    *rows, (lanes, source_lane, target_lane) = [(1, 0, 0)] * (_ROW_DIMS + 1 - len(dims)) + dims
    num_rows = math.prod(size for size, _, _ in rows)
    width = min(triton.next_power_of_2(lanes), _MOST_LANES)
    block_rows = max(1, min(triton.next_power_of_2(num_rows), _BLOCK_BYTES // (width * source.element_size())))
    blocks = triton.cdiv(num_rows, block_rows) * triton.cdiv(lanes, width)
    move_kernel[(blocks * count,)](
        _side(source, source_pages, (rows[0][1], rows[1][1], rows[2][1]), source_lane),
        _side(target, target_pages, (rows[0][2], rows[1][2], rows[2][2]), target_lane),
        rows[1][0],
        rows[2][0],
        num_rows,
        lanes,
        blocks,
        BLOCK_ROWS=block_rows,
        WIDTH=width,
        num_warps=_WARPS,
    )


def _side(tensor: Tensor, pages: Tensor | None, strides: tuple[int, int, int], lane: int) -> _Side:
    pages_stride = 0 if pages is None else pages.stride(0)
    return _Side(tensor, pages, pages_stride, tensor.shape[0], tensor.stride(0), *strides, lane)


def _as_integers(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Both as the widest integers that their addresses, strides and last dims are multiples of."""
    own = source.element_size()
    for size in (8, 4, 2, 1):
        if size >= own and all(_divides(tensor, size) for tensor in (source, target)):
            return source.view(_INTEGERS[size]), target.view(_INTEGERS[size])
    return source.view(_INTEGERS[own]), target.view(_INTEGERS[own])


def _divides(tensor: Tensor, size: int) -> bool:
    own = tensor.element_size()
    if size == own:
        return True
    factor = size // own
    inner = tensor.stride()[:-1]
    return (
        tensor.stride(-1) == 1
        and tensor.shape[-1] % factor == 0
        and tensor.storage_offset() % factor == 0
        and tensor.data_ptr() % size == 0
        and all(stride % factor == 0 for stride in inner)
    )


def _joined(source: Tensor, target: Tensor) -> list[tuple[int, int, int]]:
    """(size, source stride, target stride) of the inner dims, neighbours joined where both lie one after the other."""
    dims: list[tuple[int, int, int]] = []
    for size, one, other in zip(source.shape[1:], source.stride()[1:], target.stride()[1:], strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == size * one and dims[-1][2] == size * other:
            dims[-1] = (dims[-1][0] * size, one, other)
        else:
            dims.append((size, one, other))
    return dims or [(1, 1, 1)]


@triton.jit
def _page(side, move):
    """The page of a move, and whether there is one; ids are checked in debug mode, before the launch."""
    page = move
    if side.pages is not None:
        page = tl.load(side.pages + move * side.pages_stride).to(tl.int64)
    return page, (page >= 0) & (page < side.num_pages)


@triton.jit
def _rows_at(side, outer, middle, inner):
    return outer * side.stride_0 + middle * side.stride_1 + inner * side.stride_2


@triton.jit
def move_kernel(
    source, target, size_1, size_2, num_rows, lanes, blocks, BLOCK_ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """A block of rows and lanes of a page; `blocks` programs take one. Rows are numbered over (…, size_1, size_2)."""
    lane_blocks = (lanes + WIDTH - 1) // WIDTH
    block = tl.program_id(0) % blocks
    move = (tl.program_id(0) // blocks).to(tl.int64)
    row = (block // lane_blocks).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    lane = (block % lane_blocks).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inner, rest = row % size_2, row // size_2
    middle, outer = rest % size_1, rest // size_1
    from_page, has_source = _page(source, move)
    to_page, has_target = _page(target, move)
    mask = (row < num_rows)[:, None] & (lane < lanes)[None, :] & has_source & has_target
    from_rows = source.ptr + from_page * source.stride_page + _rows_at(source, outer, middle, inner)
    to_rows = target.ptr + to_page * target.stride_page + _rows_at(target, outer, middle, inner)
    x = tl.load(from_rows[:, None] + (lane * source.stride_lane)[None, :], mask=mask)
    tl.store(to_rows[:, None] + (lane * target.stride_lane)[None, :], x, mask=mask)

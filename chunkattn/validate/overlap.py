"""Memory that a written argument shares with another one, or with itself.

Pools, queries and outputs are often views of one storage (fused KV, packed QKV), so that ranges of addresses that cross
prove nothing: what counts is whether some element of one lies on an element of the other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from operator import itemgetter

from torch import Tensor

from chunkattn.args import AppendArgs, AttentionArgs, MergeArgs, PlanArgs
from chunkattn.validate.sentences import bad

_Named = tuple[str, Tensor | None]
_Span = tuple[int, int, str, Tensor, bool]  # first address, address past the last, argument, tensor, whether written
_Layout = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides in elements, bytes of an element

_STEPS = 4096
"""A search longer than this is given up and the tensors taken to lie apart: layouts that people make need about ten."""


def attention(a: AttentionArgs) -> None:
    """out, lse and workspace share no memory with each other or with what is read; K and V may."""
    apart(
        (("out", a.out), ("lse", a.lse), ("workspace", a.workspace)),
        (
            ("q", a.q),
            ("k_cache", a.k_cache),
            ("v_cache", a.v_cache),
            ("block_table", a.block_table),
            ("cu_seqlens_q", a.cu_seqlens_q),
            ("seq_lens", a.seq_lens),
            ("alibi_slopes", a.alibi_slopes),
            ("sinks", a.sinks),
            ("tree_mask", a.tree_mask),
            ("k_scale", a.k_scale),
            ("v_scale", a.v_scale),
            ("plan", a.plan),
        ),
    )


def append_kv(a: AppendArgs) -> None:
    """The pools, scales that are written and q share no memory with each other or with what is read; k and v may."""
    writes: list[_Named] = [("k_cache", a.k_cache), ("v_cache", a.v_cache), ("q", a.q)]
    reads: list[_Named] = [
        ("k", a.k),
        ("v", a.v),
        ("block_table", a.block_table),
        ("cu_seqlens_q", a.cu_seqlens_q),
        ("seq_lens", a.seq_lens),
        ("slot_mapping", a.slot_mapping),
        ("rope.cos", a.rope_cos),
        ("rope.sin", a.rope_sin),
        ("rope.positions", a.rope_positions),
    ]
    for arg, scale in (("k_scale", a.k_scale), ("v_scale", a.v_scale)):
        if scale is not None:
            (writes if scale.dim() == 3 else reads).append((arg, scale))
    apart(writes, reads)


def merge_states(a: MergeArgs) -> None:
    """out may be out_a or out_b and lse may be lse_a or lse_b, element upon element; else they lie apart."""
    outs, lses = (("out_a", a.out_a), ("out_b", a.out_b)), (("lse_a", a.lse_a), ("lse_b", a.lse_b))
    reads = [(arg, state) for arg, state in outs if not _same_view(state, a.out)]
    reads += [(arg, lse) for arg, lse in lses if not _same_view(lse, a.lse)]
    apart((("out", a.out), ("lse", a.lse)), reads)


def plan(a: PlanArgs) -> None:
    """The words share no memory with the lengths."""
    apart((("words", a.words),), (("cu_seqlens_q", a.cu_seqlens_q), ("seq_lens", a.seq_lens)))


def _same_view(a: Tensor, b: Tensor) -> bool:
    if a.data_ptr() != b.data_ptr():
        return False
    return a.stride() == b.stride() or all(x == y or size == 1 for size, x, y in zip(a.shape, a.stride(), b.stride()))


def apart(writes: Iterable[_Named], reads: Iterable[_Named]) -> None:
    """Refuses a written tensor of which an element lies on another of its own, or of any other tensor named here.

    Reads data pointers and no contents. Tensors of one device.

    Raises:
        ValueError: naming the written argument and the one whose memory it shares.
    """
    spans: list[_Span] = []
    for named, written in ((writes, True), (reads, False)):
        for arg, tensor in named:
            if tensor is None:
                continue
            if tensor.is_contiguous():
                size = tensor.nbytes
            else:
                size = _span(tensor)
                if written and _overlaps_itself(tensor.shape, tensor.stride()):
                    bad(arg, "a tensor whose elements lie apart, since it is written", f"strides {tensor.stride()}")
            if size:
                begin = tensor.data_ptr()
                spans.append((begin, begin + size, arg, tensor, written))
    spans.sort(key=itemgetter(0))
    reach = 0
    for span in spans:
        if span[0] < reach:
            _compare(spans)
            return
        reach = span[1]


def _compare(spans: list[_Span]) -> None:
    """Every pair of which at least one is written."""
    for i, a in enumerate(spans):
        for b in spans[i + 1 :]:
            if b[0] >= a[1]:
                break
            if (a[4] or b[4]) and _overlap(_layout(a[3]), _layout(b[3]), b[0] - a[0]):
                written, other = (a, b) if a[4] else (b, a)
                bad(written[2], "memory of its own, since it is written", f"some that {other[2]} uses")


def _span(tensor: Tensor) -> int:
    """Bytes from the first element to past the last; 0 if there is none."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()


def _layout(tensor: Tensor) -> _Layout:
    return tensor.shape, tensor.stride(), tensor.element_size()


@functools.lru_cache(maxsize=1024)
def _overlap(a: _Layout, b: _Layout, offset: int) -> bool:
    """Whether a byte of `b`, whose data starts `offset` bytes after that of `a`, is one of `a`.

    A byte of a is Σ i·stride, one of b is offset + Σ j·stride. They meet where Σ i·stride + Σ (last − j)·stride is
    offset + Σ last·stride of b, a sum in which every index runs from 0.
    """
    counts: dict[int, int] = {}
    target = offset
    for shape, strides, element in (a, b):
        for size, stride in ((element, 1), *((size, stride * element) for size, stride in zip(shape, strides))):
            counts[stride] = counts.get(stride, 0) + size - 1
    shape, strides, element = b
    target += element - 1 + sum((size - 1) * stride * element for size, stride in zip(shape, strides))
    return _solutions(target, counts, 1) >= 1


@functools.lru_cache(maxsize=1024)
def _overlaps_itself(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two elements lie in one place: whether Σ i·stride = Σ j·stride for other indices than i = j."""
    counts: dict[int, int] = {}
    target = 0
    for size, stride in zip(shape, strides):
        if size == 1:
            continue
        if stride == 0 or stride in counts:
            return True
        counts[stride] = 2 * (size - 1)
        target += (size - 1) * stride
    return _solutions(target, counts, 2) >= 2


def _solutions(target: int, counts: dict[int, int], wanted: int) -> int:
    """How many ways, up to `wanted`, there are to write target = Σ c·stride with 0 ≤ c ≤ counts[stride]."""
    strides = sorted((stride for stride, count in counts.items() if count > 0 and stride > 0), reverse=True)
    spans = [0]  # what the smaller strides reach together
    for stride in reversed(strides):
        spans.append(spans[-1] + counts[stride] * stride)
    spans.reverse()
    divisors = [math.gcd(*strides[level:]) for level in range(len(strides))]
    found = steps = 0
    waiting = [(0, target)]
    while waiting and found < wanted and steps < _STEPS:
        steps += 1
        level, rest = waiting.pop()
        if level == len(strides):
            found += rest == 0
            continue
        if rest % divisors[level]:
            continue
        stride = strides[level]
        low = max(0, -(-(rest - spans[level + 1]) // stride))
        high = min(counts[stride], rest // stride, low + _STEPS)
        waiting += [(level + 1, rest - c * stride) for c in range(low, high + 1)]
    return found

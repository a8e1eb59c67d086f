"""Eager PyTorch, any device: the operators in readable form, and the fallback where nothing else runs.

It reads lengths and page tables on the host, so it synchronises a GPU and cannot be captured in a CUDA graph.
16-bit inputs are computed in fp32, fp32 inputs in fp64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from chunkattn.args import AppendArgs, AttentionArgs, MergeArgs, PlanArgs
from chunkattn.backends.base import Support
from chunkattn.planning import contents
from chunkattn.planning.work import WorkSpec, make_plan, plan_words
from chunkattn.types import AttentionSpec

_INVARIANT_BLOCK = 256  # keys a step of invariant mode; blocks lie at absolute multiples, every shape is the same

__all__ = ["plan_words"]


def supports(spec: AttentionSpec) -> Support:
    return Support()


def describe(spec: AttentionSpec) -> str:
    return "eager PyTorch"


def workspace_bytes(spec: AttentionSpec, max_tokens: int, max_seq_len: int, num_splits: int) -> int:
    return 0


def plan_workspace_bytes(args: PlanArgs, max_tokens: int | None, max_seq_len: int | None) -> int:
    return 0


def plan(args: PlanArgs) -> None:
    """Fills the plan's words; this backend computes request after request and only checks that a plan fits."""
    starts, lens = contents.check_lengths(args.cu_seqlens_q, args.seq_lens)
    words = make_plan(_work_spec(args), starts, lens)
    args.words.copy_(torch.tensor(words, dtype=torch.int64))


def _work_spec(args: PlanArgs | AttentionArgs, num_q_heads: int = 0, num_kv_heads: int = 0) -> WorkSpec:
    if isinstance(args, PlanArgs):
        num_q_heads, num_kv_heads = args.num_q_heads, args.num_kv_heads
    return WorkSpec(
        num_q_heads,
        num_kv_heads,
        args.causal,
        args.window_left,
        args.window_right,
        args.invariant,
        args.num_splits,
    )


@dataclass
class _Softmax:
    """Running state of an online softmax over blocks of keys: rows [R, Hq]."""

    maximum: Tensor
    total: Tensor
    out: Tensor  # [R, Hq, Dv], not normalised

    def update(self, scores: Tensor, values: Tensor, keep: Tensor) -> None:
        """scores [R, Hq, n], values [n, Hkv, Dv], keep [R, n]: who sees what."""
        maximum = torch.maximum(self.maximum, scores.amax(-1))
        finite = torch.where(maximum == -math.inf, torch.zeros_like(maximum), maximum)
        weights = torch.exp(scores - finite[..., None])
        decay = torch.exp(self.maximum - finite)
        rows, heads, keys = weights.shape
        kv_heads = values.shape[1]
        grouped = weights.view(rows, kv_heads, heads // kv_heads, keys).permute(1, 0, 2, 3)
        grouped = grouped.reshape(kv_heads, -1, keys)
        # A hidden value must not meet its weight 0, which would not silence it: 0 * NaN.
        product = torch.bmm(grouped, values.nan_to_num(0.0, 0.0, 0.0).transpose(0, 1).contiguous())
        product = product.view(kv_heads, rows, heads // kv_heads, -1).permute(1, 0, 2, 3).reshape(self.out.shape)
        finite_value = values.isfinite()
        for key in (~finite_value).flatten(1).any(1).nonzero().flatten().tolist():
            rest = torch.where(finite_value[key], 0.0, values[key]).repeat_interleave(heads // kv_heads, 0)
            product = product + torch.where(keep[:, key, None, None], rest, 0.0)
        self.out = self.out * decay[..., None] + product
        self.total = self.total * decay + weights.sum(-1)
        self.maximum = maximum

    def finish(self, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        """(out [R, Hq, Dv], lse [R, Hq])."""
        maximum, total, out = self.maximum, self.total, self.out
        if sinks is not None:
            top = torch.maximum(maximum, sinks)
            decay = torch.exp(maximum - top)
            total, out, maximum = total * decay + torch.exp(sinks - top), out * decay[..., None], top
        # Compared with 0, not by what is above it: a NaN total is the answer of a row that saw a NaN.
        lse = torch.where(total == 0, torch.full_like(total, -math.inf), maximum + total.log())
        return torch.where(total[..., None] == 0, torch.zeros_like(out), out / total[..., None]), lse


def attention(a: AttentionArgs) -> None:
    starts, lens = contents.check_attention(a)
    if a.plan is not None:
        _check_plan(a, starts, lens)
    # Computed before anything is written: an error on the way leaves out as it was.
    parts = []
    for request, kv_len in enumerate(lens):
        begin, end = starts[request], starts[request + 1]
        step = 1 if a.invariant else max(end - begin, 1)
        for row in range(begin, end, step):
            parts.append(
                (row, _rows(a, request, row, row + step, kv_len - (end - begin) + (row - begin), kv_len, begin))
            )
    a.out.zero_()
    if a.lse is not None:
        a.lse.fill_(-math.inf)
    for row, (out, lse) in parts:
        a.out[row : row + out.shape[0]] = out.to(a.out.dtype)
        if a.lse is not None:
            a.lse[row : row + out.shape[0]] = lse.to(torch.float32)


def _check_plan(a: AttentionArgs, starts: list[int], lens: list[int]) -> None:
    assert a.plan is not None
    expected = make_plan(_work_spec(a, a.q.shape[1], a.k_cache.shape[2]), starts, lens)
    if a.plan.tolist() != expected:
        raise ValueError("plan: expected one made for these lengths and options, got one made for others")


def _rows(
    a: AttentionArgs, request: int, begin: int, end: int, first_pos: int, kv_len: int, request_begin: int
) -> tuple[Tensor, Tensor]:
    """Query rows [begin, end) of one request; the first has absolute position `first_pos`."""
    compute = torch.float64 if a.q.dtype == torch.float32 else torch.float32
    device, (rows, heads) = a.q.device, (end - begin, a.q.shape[1])
    q = a.q[begin:end].to(compute)
    q_pos = torch.arange(first_pos, first_pos + rows, device=device)
    state = _Softmax(
        torch.full((rows, heads), -math.inf, dtype=compute, device=device),
        torch.zeros((rows, heads), dtype=compute, device=device),
        torch.zeros((rows, heads, a.out.shape[2]), dtype=compute, device=device),
    )
    last = first_pos + rows - 1
    low = max(0, first_pos - a.window_left) if a.window_left >= 0 else 0
    high = min(kv_len, last + 1) if a.causal else kv_len
    if a.window_right >= 0:
        high = min(high, last + 1 + a.window_right)
    block = _INVARIANT_BLOCK if a.invariant else max(high - low, 1)
    for start in range(low // block * block if a.invariant else low, high, block):
        kv_pos = torch.arange(start, start + block, device=device)
        inside = (kv_pos >= low) & (kv_pos < high)
        k = _load(a.k_cache, a.k_scale, a.block_table[request], kv_pos, inside, compute)
        v = _load(a.v_cache, a.v_scale, a.block_table[request], kv_pos, inside, compute)
        scores = _scores(a, request, q, k, q_pos, kv_pos, compute)
        keep = _keep(a, begin, q_pos, kv_pos, kv_len, request_begin) & inside
        state.update(scores.masked_fill(~keep[:, None, :], -math.inf), v, keep)
    return state.finish(None if a.sinks is None else a.sinks.to(compute))


def _load(
    pool: Tensor, scale: Tensor | None, table: Tensor, kv_pos: Tensor, inside: Tensor, compute: torch.dtype
) -> Tensor:
    """Keys or values [n, Hkv, D] at absolute positions; zeros where not inside, and nothing is read there."""
    out = torch.zeros((len(kv_pos), *pool.shape[2:]), dtype=compute, device=pool.device)
    wanted = kv_pos[inside]
    page = table[torch.div(wanted, pool.shape[1], rounding_mode="floor")].long()
    slot = wanted % pool.shape[1]
    stored = pool.view(torch.uint8) if pool.element_size() == 1 else pool
    rows = stored[page, slot].view(pool.dtype).to(compute)
    if scale is not None:
        factor = scale[page, slot] if scale.dim() == 3 else scale.expand(pool.shape[2])
        rows = rows * factor[..., None].to(compute)
    out[inside] = rows
    return out


def _scores(
    a: AttentionArgs, request: int, q: Tensor, k: Tensor, q_pos: Tensor, kv_pos: Tensor, compute: torch.dtype
) -> Tensor:
    """scale, soft-cap and ALiBi: [R, Hq, n]."""
    rows, heads, dim = q.shape
    kv_heads = k.shape[1]
    grouped = q.view(rows, kv_heads, heads // kv_heads, dim).permute(1, 0, 2, 3).reshape(kv_heads, -1, dim)
    scores = torch.bmm(grouped, k.permute(1, 2, 0).contiguous())
    scores = scores.view(kv_heads, rows, heads // kv_heads, -1).permute(1, 0, 2, 3).reshape(rows, heads, -1)
    scores = scores * a.softmax_scale
    if a.softcap > 0:
        scores = a.softcap * torch.tanh(scores / a.softcap)
    if a.alibi_slopes is not None:
        slopes = a.alibi_slopes[request] if a.alibi_slopes.dim() == 2 else a.alibi_slopes
        scores = scores + slopes.to(compute)[None, :, None] * (kv_pos - q_pos[:, None])[:, None, :]
    return scores


def _keep(a: AttentionArgs, begin: int, q_pos: Tensor, kv_pos: Tensor, kv_len: int, request_begin: int) -> Tensor:
    """causal ∧ window ∧ tree: [R, n]."""
    distance = kv_pos - q_pos[:, None]
    keep = torch.ones_like(distance, dtype=torch.bool)
    if a.causal:
        keep &= distance <= 0
    if a.window_left >= 0:
        keep &= distance >= -a.window_left
    if a.window_right >= 0:
        keep &= distance <= a.window_right
    if a.tree_mask is not None:
        history = int(q_pos[0]) - (begin - request_begin)
        new = kv_pos - history
        bits = a.tree_mask[begin : begin + len(q_pos)]
        word = torch.div(new.clamp(min=0), 32, rounding_mode="floor").clamp(max=max(bits.shape[1] - 1, 0))
        keep &= (new < 0) | (((bits[:, word] >> (new % 32)) & 1) == 1)
    return keep


def repeat_attention(a: AttentionArgs) -> bool:
    return False


def repeat_append_kv(a: AppendArgs) -> bool:
    return False


def append_kv(a: AppendArgs) -> None:
    slots, positions = contents.check_append(a)
    page_size = a.k_cache.shape[1]
    tokens = torch.tensor([token for token, _ in slots], dtype=torch.long, device=a.k.device)
    slot = torch.tensor([slot for _, slot in slots], dtype=torch.long, device=a.k.device)
    page, offset = torch.div(slot, page_size, rounding_mode="floor"), slot % page_size
    k = a.k
    if positions:
        assert a.rope_cos is not None
        assert a.rope_sin is not None
        known = torch.tensor([p for _, p in positions], dtype=torch.long, device=k.device)
        rows = torch.tensor([t for t, _ in positions], dtype=torch.long, device=k.device)
        cos, sin = a.rope_cos[known], a.rope_sin[known]
        k = k.clone()
        k[rows] = rotate(k[rows], cos, sin, a.rope_interleaved)
        if a.q is not None:
            a.q[rows] = rotate(a.q[rows], cos, sin, a.rope_interleaved)
    for source, cache, scale in ((k, a.k_cache, a.k_scale), (a.v, a.v_cache, a.v_scale)):
        _store(source[tokens], cache, scale, page, offset)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """RoPE on the first 2·cos.shape[1] lanes of x [n, H, D]; computed in fp32, rounded once to x's dtype."""
    half = cos.shape[1]
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
        rotated = torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)
    else:
        first, second = turned[..., :half], turned[..., half:]
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return torch.cat((rotated.to(x.dtype), rest), -1)


def _store(rows: Tensor, cache: Tensor, scale: Tensor | None, page: Tensor, offset: Tensor) -> None:
    """Quantises rows [n, Hkv, D] if the cache asks for it and writes them to (page, offset)."""
    if cache.dtype == rows.dtype:
        cache[page, offset] = rows
        return
    values = rows.float()
    largest = 127.0 if cache.dtype == torch.int8 else torch.finfo(cache.dtype).max
    if scale is not None and scale.dim() == 3:
        amax = values.abs().nan_to_num(nan=0.0, posinf=math.inf).amax(-1)
        factor = torch.where(amax > 0, amax / largest, torch.ones_like(amax))
        scale[page, offset] = factor
        values = values / factor[..., None]
    elif scale is not None:
        values = values / scale.expand(cache.shape[2])[:, None]
    values = values.clamp(-largest, largest)  # keeps NaN
    if cache.dtype == torch.int8:
        cache[page, offset] = values.nan_to_num(nan=0.0).round().to(torch.int8)
    else:
        cache.view(torch.uint8)[page, offset] = values.to(cache.dtype).view(torch.uint8)


def merge_states(a: MergeArgs) -> None:
    lse_a, lse_b = a.lse_a.double(), a.lse_b.double()
    top = torch.maximum(lse_a, lse_b)
    finite = torch.where(top == -math.inf, torch.zeros_like(top), top)
    weight_a, weight_b = torch.exp(lse_a - finite), torch.exp(lse_b - finite)
    total = weight_a + weight_b
    parts = []
    for out, weight in ((a.out_a, weight_a), (a.out_b, weight_b)):
        share = torch.where(total == 0, torch.zeros_like(total), weight / total)[..., None]
        parts.append(torch.where(weight[..., None] == 0, torch.zeros_like(share), out.double() * share))
    a.out.copy_((parts[0] + parts[1]).to(a.out.dtype))
    a.lse.copy_(torch.where(top == math.inf, top, finite + total.log()).to(torch.float32))


def copy_pages(cache: Tensor, source: Tensor, target: Tensor) -> None:
    contents.check_page_ids("source", source, cache.shape[0])
    contents.check_page_targets("target", target, cache.shape[0], source)
    _bytes(cache)[target.long()] = _bytes(cache)[source.long()]


def gather_pages(cache: Tensor, pages: Tensor, out: Tensor) -> None:
    contents.check_page_ids("pages", pages, cache.shape[0])
    _bytes(out).copy_(_bytes(cache)[pages.long()])


def scatter_pages(block: Tensor, cache: Tensor, pages: Tensor) -> None:
    contents.check_page_targets("pages", pages, cache.shape[0])
    _bytes(cache)[pages.long()] = _bytes(block)


def _bytes(tensor: Tensor) -> Tensor:
    """One-byte dtypes as uint8, which indexing supports everywhere."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor

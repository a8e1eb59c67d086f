"""The five parts that the Triton attention kernels are made of, each alone: loader, score, mask, softmax, epilogue."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from . import native, triton_driver
from .session import emulated

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if not triton_driver.available():
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
import triton.language as tl

from chunkattn.backends.triton import arguments as group
from chunkattn.backends.triton.epilogue import add_sink, finish
from chunkattn.backends.triton.loader import find_slots, load_tile, load_token_scale, split_scale, widen
from chunkattn.backends.triton.mask import full_range, keep, visible_range
from chunkattn.backends.triton.score import modify_scores
from chunkattn.backends.triton.softmax import empty_state, join, softmax_step
from chunkattn.testing import visible_positions

INF = math.inf


@pytest.fixture(params=[80, 90], ids=["sm_80", "sm_90"], autouse=True)
def _gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    with emulated(request.param):
        yield


def spec(**values: object) -> group.Spec:
    """A spec with these fields and None for the others."""
    return group.Spec(**{name: tl.constexpr(values.get(name)) for name in group.Spec._fields})


@triton.jit
def widen_kernel(stored, out, COUNT: tl.constexpr, STORAGE: tl.constexpr):
    index = tl.arange(0, COUNT)
    tl.store(out + index, widen(tl.load(stored + index), out.dtype.element_ty, STORAGE))


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("dtype", "storage"), [(torch.float8_e4m3fn, "e4m3"), (torch.float8_e5m2, "e5m2"), (torch.int8, "int8")]
)
def test_loader_widens_every_code(dtype: torch.dtype, storage: str, target: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    stored = codes.view(torch.int8) if storage == "int8" else codes
    out = torch.empty(256, dtype=target)
    widen_kernel[(1,)](stored, out, 256, storage)
    expected = codes.view(dtype).to(torch.float32).to(target)
    assert torch.equal(out.isnan(), expected.isnan())
    finite = ~expected.isnan()
    assert torch.equal(out[finite], expected[finite])


@triton.jit
def split_scale_kernel(scale, power_out, fraction_out, COUNT: tl.constexpr):
    index = tl.arange(0, COUNT)
    power, fraction = split_scale(tl.load(scale + index))
    tl.store(power_out + index, power)
    tl.store(fraction_out + index, fraction)


def test_loader_splits_scales_exactly() -> None:
    scale = torch.cat([torch.randn(60).exp(), torch.tensor([0.0, -3.0, 1e-30, 7e30])])
    power, fraction = torch.empty(64), torch.empty(64)
    split_scale_kernel[(1,)](scale, power, fraction, 64)
    assert torch.equal(power * fraction, scale)
    assert ((fraction >= 1) & (fraction < 2)).all()
    mantissa, _ = power[power != 0].frexp()
    assert (mantissa.abs() == 0.5).all()


@triton.jit
def load_kernel(batch, pool, out, scale_out, start, live_begin, live_end, MASKED: tl.constexpr, spec):
    position = start + tl.arange(0, spec.block_n)
    live = (position >= live_begin) & (position < live_end)
    page, slot = find_slots(batch, tl.program_id(0), start, live, MASKED, spec)
    tile = load_tile(pool, page, slot, tl.program_id(1), live, MASKED, spec.head_dim, spec.depth, spec)
    scale = load_token_scale(pool.scale, page, slot, tl.program_id(1), live, MASKED)
    place = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * spec.block_n + tl.arange(0, spec.block_n)
    tl.store(out + place[:, None] * spec.depth + tl.arange(0, spec.depth)[None, :], tile)
    tl.store(scale_out + place, scale)


@pytest.mark.parametrize("page_size", [1, 7, 64])
@pytest.mark.parametrize("head_dim", [40])
@pytest.mark.parametrize(("start", "live"), [(32, None), (32, (35, 60)), (0, (0, 1)), (64, (64, 95))])
def test_loader_follows_the_page_table(page_size, head_dim, start, live) -> None:
    """Live keys by their pages, zeros elsewhere; pages and columns of dead keys are not looked at."""
    keys, heads, depth, block_n = 96, 2, 32 if head_dim == 32 else 64, 32
    pages = -(-keys // page_size)
    pool = torch.full((2 * pages, heads, page_size, head_dim), math.nan).transpose(1, 2)
    scale = torch.full((2 * pages, page_size, heads), math.nan)
    table = torch.full((2, pages + 2), -1, dtype=torch.int32)
    values, factors = torch.randn(2, keys, heads, head_dim), torch.rand(2, keys, heads)
    order = torch.randperm(2 * pages).tolist()
    first, last = live or (start, start + block_n)
    for request in range(2):
        for column in range(first // page_size, (last - 1) // page_size + 1):
            table[request, column] = order.pop()
        for key in range(first, last):
            place = table[request, key // page_size], key % page_size
            pool[place], scale[place] = values[request, key], factors[request, key]
    batch = group.Batch(torch.empty(0), torch.empty(0), table, *table.stride())
    pools = group.Pool(pool, *pool.stride()[:3], group.Scale(scale, *scale.stride()))
    out, scale_out = torch.full((2, heads, block_n, depth), INF), torch.full((2, heads, block_n), INF)
    constants = spec(page_size=page_size, block_n=block_n, head_dim=head_dim, depth=depth)
    load_kernel[(2, heads)](batch, pools, out, scale_out, start, first, last, live is not None, constants)
    expected, expected_scale = torch.zeros_like(out), torch.zeros_like(scale_out)
    rows = slice(first - start, last - start)
    expected[:, :, rows, :head_dim] = values[:, first:last].transpose(1, 2)
    expected_scale[:, :, rows] = factors[:, first:last].transpose(1, 2)
    assert torch.equal(out, expected)
    assert torch.equal(scale_out, expected_scale)


@triton.jit
def score_kernel(products, slopes, out, scale, softcap, q_begin, kv_begin, spec):
    rows, columns = tl.arange(0, 16), tl.arange(0, 32)
    place = rows[:, None] * 32 + columns[None, :]
    slope = tl.load(slopes + rows)
    logits = modify_scores(tl.load(products + place), scale, softcap, slope, q_begin + rows, kv_begin + columns, spec)
    tl.store(out + place, logits)


@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize("softcap", [0.0, 0.5, 30.0])
def test_score_is_scaled_capped_then_biased(softcap: float, alibi: bool) -> None:
    products, slopes, out = 40.0 * torch.randn(16, 32), torch.rand(16), torch.empty(16, 32)
    score_kernel[(1,)](products, slopes, out, 0.3, softcap, 100, 90, spec(has_softcap=softcap > 0, has_alibi=alibi))
    expected = products.double() * 0.3
    if softcap:
        expected = softcap * torch.tanh(expected / softcap)
    if alibi:
        distance = (90 + torch.arange(32))[None, :] - (100 + torch.arange(16))[:, None]
        expected = expected + slopes.double()[:, None] * distance
    assert (out.double() - expected / math.log(2)).abs().max() < 2e-5


@triton.jit
def mask_kernel(seen_out, ranges_out, tree, kv_len, q_len, left, right, spec):
    rows, columns = tl.arange(0, 16), tl.arange(0, 32)
    first_new = kv_len - q_len
    q_pos = first_new + rows
    numbers = group.Numbers(0.0, 0.0, left, right)
    extras = group.Extras(None, 0, 0, None, 0, tree, 1)
    begin, end = visible_range(first_new, first_new + q_len - 1, kv_len, numbers, spec)
    full_begin, full_end = full_range(first_new, first_new + q_len - 1, first_new, kv_len, numbers, spec)
    tl.store(ranges_out, begin)
    tl.store(ranges_out + 1, end)
    tl.store(ranges_out + 2, full_begin)
    tl.store(ranges_out + 3, full_end)
    seen = keep(q_pos, columns, columns < kv_len, rows, rows < q_len, first_new, extras, numbers, spec)
    tl.store(seen_out + rows[:, None] * 32 + columns[None, :], seen)


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (3, -1), (5, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_mask_has_three_faces_that_agree(causal: bool, window: tuple[int, int], tree: bool) -> None:
    """Against the oracle's sets: who sees what, what is seen at all, what every row sees."""
    left, right = window
    constants = spec(causal=causal, has_left=left >= 0, has_right=right >= 0, has_tree=tree)
    for q_len, kv_len in ((1, 1), (4, 9), (16, 16), (7, 32), (5, 2), (9, 0)):
        bits = torch.randint(-(2**31), 2**31, (16, 1), dtype=torch.int64).to(torch.int32)
        seen, ranges = torch.zeros(16, 32, dtype=torch.bool), torch.zeros(4, dtype=torch.int32)
        mask_kernel[(1,)](seen, ranges, bits, kv_len, q_len, left, right, constants)
        expected = torch.zeros(16, 32, dtype=torch.bool)
        for row in range(q_len):
            words = bits[row].tolist() if tree else None
            first_new = kv_len - q_len
            for key in visible_positions(
                first_new + row, first_new, kv_len, causal=causal, window=window, tree_row=words
            ):
                expected[row, key] = True
        assert torch.equal(seen, expected), (q_len, kv_len)
        begin, end, full_begin, full_end = ranges.tolist()
        inside = torch.zeros(32, dtype=torch.bool)
        inside[begin : max(begin, end)] = True
        assert not expected[:, ~inside].any(), (q_len, kv_len)
        if not tree and expected.any():
            assert expected.any(0).nonzero().flatten().tolist() == list(range(begin, end))
        if full_end > full_begin:
            assert expected[:q_len, full_begin:full_end].all(), (q_len, kv_len)


@triton.jit
def softmax_kernel(logits, values, maximum_out, total_out, acc_out, SPLIT: tl.constexpr):
    """Four tiles of 32 keys in one state, or in two that are joined."""
    rows, columns = tl.arange(0, 16), tl.arange(0, 32)
    maximum, total, acc = empty_state(16, 16)
    other_maximum, other_total, other_acc = empty_state(16, 16)
    for tile in range(4):
        part = tl.load(logits + rows[:, None] * 128 + tile * 32 + columns[None, :])
        value = tl.load(values + (tile * 32 + columns)[:, None] * 16 + rows[None, :])
        if SPLIT and tile >= 2:
            other_maximum, other_total, weights, decay = softmax_step(other_maximum, other_total, part)
            other_acc = tl.dot(weights, value, other_acc * decay[:, None], input_precision="ieee")
        else:
            maximum, total, weights, decay = softmax_step(maximum, total, part)
            acc = tl.dot(weights, value, acc * decay[:, None], input_precision="ieee")
    if SPLIT:
        maximum, total, acc = join(maximum, total, acc, other_maximum, other_total, other_acc)
    tl.store(maximum_out + rows, maximum)
    tl.store(total_out + rows, total)
    tl.store(acc_out + rows[:, None] * 16 + rows[None, :], acc)


@pytest.mark.parametrize("split", [False, True])
def test_softmax_of_tiles_is_that_of_the_row(split: bool) -> None:
    logits, values = 20.0 * torch.randn(16, 128), torch.randn(128, 16)
    logits[0] = -INF  # no key at all
    logits[1, :96] = -INF  # only in the last tile
    logits[2, 32:] = -INF  # only in the first
    logits[3, 32:96] = -INF
    maximum, total, acc = torch.empty(16), torch.empty(16), torch.empty(16, 16)
    softmax_kernel[(1,)](logits, values, maximum, total, acc, split)
    assert torch.equal(maximum, logits.amax(1))
    assert (total[0], acc[0].abs().max()) == (0, 0)
    weights = torch.exp2(logits[1:].double() - logits[1:].double().amax(1, keepdim=True))
    torch.testing.assert_close(total[1:].double(), weights.sum(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(acc[1:].double(), weights @ values.double(), rtol=1e-4, atol=1e-5)


@triton.jit
def join_empty_kernel(maximum, total, acc, out, EMPTY_FIRST: tl.constexpr):
    rows = tl.arange(0, 16)
    place = rows[:, None] * 16 + rows[None, :]
    state = tl.load(maximum + rows), tl.load(total + rows), tl.load(acc + place)
    nothing = empty_state(16, 16)
    if EMPTY_FIRST:
        m, t, a = join(nothing[0], nothing[1], nothing[2], state[0], state[1], state[2])
    else:
        m, t, a = join(state[0], state[1], state[2], nothing[0], nothing[1], nothing[2])
    tl.store(out + rows, m)
    tl.store(out + 16 + rows, t)
    tl.store(out + 32 + place, a)


@pytest.mark.parametrize("empty_first", [False, True])
def test_joining_an_empty_state_changes_no_bit(empty_first: bool) -> None:
    maximum, total, acc = 50 * torch.randn(16), torch.rand(16) + 1, torch.randn(16, 16)
    maximum[3], total[3], acc[3] = -INF, 0.0, 0.0
    out = torch.empty(32 + 256)
    join_empty_kernel[(1,)](maximum, total, acc, out, empty_first)
    assert torch.equal(out, torch.cat([maximum, total, acc.flatten()]))


@triton.jit
def epilogue_kernel(maximum, total, acc, sinks, out, lse, SINK: tl.constexpr):
    rows = tl.arange(0, 16)
    place = rows[:, None] * 16 + rows[None, :]
    m, t, a = tl.load(maximum + rows), tl.load(total + rows), tl.load(acc + place)
    if SINK:
        m, t, a = add_sink(m, t, a, tl.load(sinks + rows))
    row, logsum = finish(m, t, a)
    tl.store(out + place, row)
    tl.store(lse + rows, logsum)


@pytest.mark.parametrize("sink", [False, True])
def test_epilogue_divides_and_counts_the_sink_once(sink: bool) -> None:
    maximum, total, acc, sinks = 20 * torch.randn(16), torch.rand(16) + 1, torch.randn(16, 16), 10 * torch.randn(16)
    maximum[2], total[2], acc[2] = -INF, 0.0, 0.0  # a row that sees no key
    sinks[5] = -INF
    out, lse = torch.empty(16, 16), torch.empty(16)
    epilogue_kernel[(1,)](maximum, total, acc, sinks, out, lse, sink)
    logit, mass = maximum.double() * math.log(2), total.double()
    expected_lse = torch.where(mass > 0, logit + mass.log(), -INF)
    numerator = expected_lse.clone()
    if sink:
        expected_lse = torch.logaddexp(expected_lse, sinks.double())
    share = torch.where(mass > 0, (numerator - expected_lse).exp() / mass.clamp(min=1e-30), 0.0)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(out.double(), acc.double() * share[:, None], rtol=1e-5, atol=1e-7)
    if not sink:
        assert lse[2] == -INF
    assert (out[2] == 0).all()

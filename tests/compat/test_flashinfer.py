"""FlashInfer's wrappers against dense float64 attention."""

from __future__ import annotations

import math

import pytest
import torch
from dense_attention import dense_attention
from packed_sequences import INT32, ends

import chunkattn
from chunkattn.compat import flashinfer
from chunkattn.testing import assert_bitwise_equal, assert_lse_close, assert_rows_close, merge_states_oracle, rotate

LN2 = math.log(2)
Q_LENS, KV_LENS = [5, 1, 9, 3], [5, 20, 33, 3]
HEADS, KV_HEADS, DIM = 4, 2, 32


class Pool:
    """Scattered pages of random requests, NaN where nothing is stored."""

    def __init__(self, layout="NHD", page_size=16, dtype=torch.float16, kv_lens=KV_LENS):
        torch.manual_seed(0)
        self.keys = [torch.randn(2, n, KV_HEADS, DIM).to(dtype) for n in kv_lens]
        counts = [-(-n // page_size) for n in kv_lens]
        self.indices = torch.randperm(sum(counts) + 2)[: sum(counts)].to(INT32)
        self.indptr = ends(counts)
        self.last = torch.tensor([(n - 1) % page_size + 1 for n in kv_lens], dtype=INT32)
        cache = torch.full((sum(counts) + 2, 2, page_size, KV_HEADS, DIM), float("nan")).to(dtype)
        for i, kv in enumerate(self.keys):
            for position in range(kv.shape[1]):
                page = self.indices[self.indptr[i] + position // page_size]
                cache[page, :, position % page_size] = kv[:, position]
        self.cache = cache if layout == "NHD" else cache.transpose(2, 3).contiguous()
        self.csr = self.indptr, self.indices, self.last
        self.sizes = HEADS, KV_HEADS, DIM, page_size


def queries(q_lens=Q_LENS, dtype=torch.float16):
    torch.manual_seed(1)
    return torch.randn(sum(q_lens), HEADS, DIM).to(dtype)


def expected(pool, q, q_lens=Q_LENS, **options):
    states = [dense_attention(part, *kv, **options) for part, kv in zip(q.split(q_lens), pool.keys)]
    return tuple(torch.cat(parts) for parts in zip(*states))


def check(out, lse_log2, want):
    assert_rows_close(out, want[0])
    assert_lse_close(lse_log2 * LN2, want[1])


def prefill(pool, layout="NHD", q_lens=Q_LENS, **options):
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(torch.empty(1 << 16, dtype=torch.uint8), layout)
    wrapper.plan(ends(q_lens), *pool.csr, *pool.sizes, **options)
    return wrapper


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_size", [1, 5, 16])
@pytest.mark.parametrize("causal", [False, True])
def test_prefill(layout, page_size, causal):
    pool, q = Pool(layout, page_size), queries()
    wrapper = prefill(pool, layout, causal=causal)
    out, lse = wrapper.run(q, pool.cache, return_lse=True)
    check(out, lse, expected(pool, q, causal=causal))
    buffers = torch.full_like(out, float("nan")), torch.full_like(lse, float("nan"))
    wrapper.run(q, tuple(pool.cache.unbind(1)), out=buffers[0], lse=buffers[1], return_lse=True)
    assert_bitwise_equal(buffers[0], out)
    assert_bitwise_equal(buffers[1], lse)


@pytest.mark.parametrize(
    ("planned", "run", "want"),
    [
        ({"window_left": 4}, {}, {"window": (4, -1)}),
        ({}, {"window_left": 4}, {"window": (4, -1)}),
        ({"logits_soft_cap": 3.0}, {}, {"softcap": 3.0}),
        ({"sm_scale": 0.3}, {}, {"scale": 0.3}),
        ({"sm_scale": 0.3}, {"q_scale": 2.0, "k_scale": torch.tensor(0.25)}, {"scale": 0.15}),
        ({}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}),
        ({"disable_split_kv": True}, {}, {}),
        ({"fixed_split_size": 4}, {}, {}),
    ],
    ids=str,
)
def test_prefill_options(planned, run, want):
    pool, q = Pool(dtype=torch.float32), queries(dtype=torch.float32)
    wrapper = prefill(pool, causal=True, q_data_type=torch.float32, **planned)
    check(*wrapper.run_return_lse(q, pool.cache, **run), expected(pool, q, causal=True, **want))


def test_prefill_alibi_counts_from_the_first_query():
    pool, q = Pool(dtype=torch.float32), queries(dtype=torch.float32)
    wrapper = prefill(pool, causal=True, q_data_type="float32", pos_encoding_mode="ALIBI")
    out, lse = wrapper.run(q, pool.cache, return_lse=True)
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
    want_out, want_lse = expected(pool, q, causal=True, slopes=slopes)
    history = torch.tensor(KV_LENS) - torch.tensor(Q_LENS)
    check(out, lse, (want_out, want_lse + torch.repeat_interleave(history, torch.tensor(Q_LENS))[:, None] * slopes))


@pytest.mark.parametrize(("scale", "theta"), [(None, None), (4.0, 500.0)])
def test_prefill_rotates_queries_and_keys(scale, theta):
    pool, q = Pool(dtype=torch.float32, page_size=5), queries(dtype=torch.float32)
    options = {"pos_encoding_mode": "ROPE_LLAMA", "rope_scale": scale, "rope_theta": theta}
    out = prefill(pool, causal=True, q_data_type="float32", **options).run(q, pool.cache)
    frequencies = (theta or 1e4) ** (-torch.arange(0, DIM, 2).double() / DIM)

    def turned(x, first):
        angles = [(first + i) / (scale or 1.0) * frequencies for i in range(x.shape[0])]
        return torch.stack([rotate(row, a.cos(), a.sin(), interleaved=False) for row, a in zip(x, angles)])

    rows = [turned(part, kv - part.shape[0]) for part, kv in zip(q.split(Q_LENS), KV_LENS)]
    pool.keys = [torch.stack([turned(kv[0], 0), kv[1].double()]) for kv in pool.keys]
    assert_rows_close(out, expected(pool, torch.cat(rows), causal=True)[0])


@pytest.mark.parametrize("packed", [False, True])
def test_prefill_custom_mask(packed):
    pool, q = Pool(), queries()
    torch.manual_seed(2)
    masks = []
    for q_len, kv_len in zip(Q_LENS, KV_LENS):
        mask = torch.ones(q_len, kv_len, dtype=torch.bool)
        mask[:, kv_len - q_len :] = torch.rand(q_len, q_len) < 0.5
        masks.append(mask)
    flat = torch.cat([mask.flatten() for mask in masks])
    if packed:
        bits = [torch.nn.functional.pad(m.flatten(), (0, -m.numel() % 8)).view(-1, 8) for m in masks]
        values = (torch.cat(bits) * (2 ** torch.arange(8))).sum(1).to(torch.uint8)
        wrapper = prefill(pool, packed_custom_mask=values)
    else:
        wrapper = prefill(pool, custom_mask=flat)
    out = wrapper.run(q, pool.cache)
    for part, rows, kv, mask in zip(out.split(Q_LENS), q.split(Q_LENS), pool.keys, masks):
        k, v = (x.double().repeat_interleave(HEADS // KV_HEADS, dim=1) for x in kv)
        scores = torch.einsum("qhd,khd->hqk", rows.double(), k) * DIM**-0.5
        weights = scores.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(0.0)  # rows that see nothing
        assert_rows_close(part, torch.einsum("hqk,khd->qhd", weights, v))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("q_len", [1, 3])
def test_decode(layout, q_len):
    pool, q = Pool(layout), queries([q_len] * 4)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(1 << 16, dtype=torch.uint8), layout)
    wrapper.plan(*pool.csr, *pool.sizes, q_len_per_req=q_len, window_left=7)
    out, lse = wrapper.run(q, pool.cache, return_lse=True)
    check(out, lse, expected(pool, q, [q_len] * 4, causal=True, window=(7, -1)))


@pytest.mark.parametrize("v_scale", [0.5, torch.tensor([0.5, 3.0])])
def test_decode_quantised_pool(v_scale):
    pool, q = Pool(), queries([1] * 4)
    cache = pool.cache.clamp(-4, 4).to(torch.float8_e5m2)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(0, dtype=torch.uint8))
    wrapper.plan(*pool.csr, *pool.sizes, data_type=torch.float8_e5m2)  # q stays float16, as in FlashInfer
    out = wrapper.run(q, cache, k_scale=2.0, v_scale=v_scale)
    factor = torch.as_tensor(v_scale).expand(KV_HEADS)[:, None]
    pool.keys = [kv.clamp(-4, 4).to(torch.float8_e5m2).double() for kv in pool.keys]
    pool.keys = [torch.stack([kv[0] * 2, kv[1] * factor]) for kv in pool.keys]
    assert_rows_close(out, expected(pool, q, [1] * 4)[0])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_batch_attention(layout):
    pool, q = Pool(layout, dtype=torch.bfloat16), queries(dtype=torch.bfloat16)
    attention = flashinfer.BatchAttention(layout, device="cpu")
    lengths = torch.tensor(KV_LENS, dtype=INT32)
    attention.plan(
        ends(Q_LENS), pool.indptr, pool.indices, lengths, HEADS, KV_HEADS, DIM, DIM, 16, causal=True, logits_soft_cap=3
    )
    check(*attention.run(q, pool.cache, logits_soft_cap=3.0), expected(pool, q, causal=True, softcap=3.0))
    scaled, _ = attention.run(q, pool.cache, k_scale=0.5, v_scale=torch.tensor(2.0))
    want = expected(pool, q, causal=True, scale=0.5 * DIM**-0.5)[0] * 2
    assert_rows_close(scaled, want, budget=2 * torch.finfo(torch.bfloat16).eps / 2)  # rounded once more by the factor


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_size", [1, 5, 16])
def test_append(layout, page_size):
    pool = Pool(layout, page_size)
    new = [3, 1, 9, 3]
    k, v = (torch.cat([kv[i, -n:] for kv, n in zip(pool.keys, new)]) for i in range(2))
    lengths = flashinfer.get_seq_lens(pool.indptr, pool.last, page_size)
    assert lengths.tolist() == KV_LENS
    request, position = flashinfer.get_batch_indices_positions(ends(new), lengths, 18)
    assert request.tolist() == [0] * 3 + [1] + [2] * 9 + [3] * 3 + [-1] * 2
    assert position[:4].tolist() == [2, 3, 4, 19]
    cache = pool.cache.clone()
    for i, position_i in zip(request[:16].tolist(), position[:16].tolist()):
        page = pool.indices[pool.indptr[i] + position_i // page_size]
        (cache[page] if layout == "NHD" else cache[page].transpose(1, 2))[:, position_i % page_size] = float("nan")
    pad = torch.full((2, KV_HEADS, DIM), float("nan")).half()
    flashinfer.append_paged_kv_cache(
        torch.cat([k, pad]), torch.cat([v, pad]), request, position, cache, pool.indices, pool.indptr, pool.last, layout
    )
    assert_bitwise_equal(cache.nan_to_num(), pool.cache.nan_to_num())


def state(count, seed):
    torch.manual_seed(seed)
    return torch.randn(5, count, 3, 16), torch.randn(5, count, 3) * 4


def test_merge_is_base_2():
    (v_a, s_a), (v_b, s_b) = (tuple(x[:, 0] for x in state(1, seed)) for seed in (1, 2))
    s_a[0] = float("-inf")
    v_a[0] = float("nan")
    want = merge_states_oracle(v_a, s_a * LN2, v_b, s_b * LN2)
    check(*flashinfer.merge_state(v_a, s_a, v_b, s_b), want)
    v, s = v_b.clone(), s_b.clone()
    mask = torch.tensor([True, True, False, True, False])
    flashinfer.merge_state_in_place(v, s, v_a, s_a, mask)
    check(v[mask], s[mask], tuple(x[mask] for x in want))
    assert_bitwise_equal(v[~mask], v_b[~mask])
    assert_bitwise_equal(s[~mask], s_b[~mask])


@pytest.mark.parametrize("count", [0, 1, 4])
def test_merge_many(count):
    v, s = state(count, 3)
    out, lse = flashinfer.merge_states(v, s)
    weights = torch.softmax(s.double() * LN2, 1)
    want = (weights[..., None] * v.double()).sum(1)
    check(out, lse, (want, (s.double() * LN2).logsumexp(1)))


PLAN_REFUSALS = {
    "prefix_len_ptr": torch.zeros(4, dtype=INT32),
    "token_pos_in_items_len": 3,
    "custom_mask": torch.zeros(sum(q * kv for q, kv in zip(Q_LENS, KV_LENS)), dtype=torch.bool),
}
RUN_REFUSALS = {
    "kv_cache_sf": torch.zeros(1),
    "skip_softmax_threshold_scale_factor": 1.0,
    "uses_spcompress": True,
    "v_scale": torch.ones(2),
}


@pytest.mark.parametrize("name", PLAN_REFUSALS)
def test_plan_refuses_by_name(name):
    with pytest.raises(chunkattn.UnsupportedError, match=rf"^{name}: "):
        prefill(Pool(), **{name: PLAN_REFUSALS[name]})


@pytest.mark.parametrize("name", RUN_REFUSALS)
def test_run_refuses_by_name(name):
    pool = Pool()
    with pytest.raises(chunkattn.UnsupportedError, match=rf"^{name}: "):
        prefill(pool).run(queries(), pool.cache, **{name: RUN_REFUSALS[name]})


def test_graph_buffers_and_custom_kernels_are_refused():
    workspace = torch.empty(8, dtype=torch.uint8)
    for wrapper in (flashinfer.BatchPrefillWithPagedKVCacheWrapper, flashinfer.BatchDecodeWithPagedKVCacheWrapper):
        for name, value in (("use_cuda_graph", True), ("jit_args", ["mine"])):
            with pytest.raises(chunkattn.UnsupportedError, match=rf"^{name}: "):
                wrapper(workspace, **{name: value})


def test_what_differs_from_the_plan_is_refused():
    pool, q = Pool(), queries()
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(torch.empty(8, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="plan"):
        wrapper.run(q, pool.cache)
    wrapper = prefill(pool)
    for bad, cache in (
        (q.bfloat16(), pool.cache),
        (q[1:], pool.cache),
        (q, pool.cache.float()),
        (q, pool.cache[:, :, :8]),
    ):
        with pytest.raises(ValueError, match="as planned"):
            wrapper.run(bad, cache)


def planned_wrappers(dim, dim_v):
    """(run of q and a pool, its name for the pool) of every wrapper, planned for these head dims."""
    pool = Pool()
    workspace, sizes = torch.empty(8, dtype=torch.uint8), (HEADS, KV_HEADS)
    prefills = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace)
    prefills.plan(ends(Q_LENS), *pool.csr, *sizes, dim, 16, head_dim_vo=dim_v)
    mixed = flashinfer.BatchAttention(device="cpu")
    lengths, dtypes = torch.tensor(KV_LENS, dtype=INT32), {"q_data_type": torch.float16, "kv_data_type": torch.float16}
    mixed.plan(ends(Q_LENS), pool.indptr, pool.indices, lengths, *sizes, dim, dim_v, 16, **dtypes)
    yield prefills.run, "paged_kv_cache"
    yield mixed.run, "kv_cache"
    if dim != dim_v:
        return
    decodes = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    decodes.plan(*pool.csr, *sizes, dim, 16)
    yield (lambda q, cache: decodes.run(q[: len(KV_LENS)], cache)), "paged_kv_cache"
    cascade = flashinfer.MultiLevelCascadeAttentionWrapper(1, workspace)
    cascade.plan([ends(Q_LENS)], *([x] for x in pool.csr), *sizes, dim, 16)
    yield cascade.run, "paged_kv_cache"


@pytest.mark.parametrize(("dim", "dim_v"), [(64, 64), (64, DIM), (DIM, 64)])
def test_another_head_dim_than_planned_is_refused(dim, dim_v):
    """q, keys and values in turn; a narrower pool beside a narrower q as well, which fits but was not planned."""
    pages = Pool().cache.shape[0]

    def zeros(*shape):
        return torch.zeros(*shape).half()

    good_q, narrow_q = zeros(sum(Q_LENS), HEADS, dim), zeros(sum(Q_LENS), HEADS, dim // 2)
    k, v = zeros(pages, 16, KV_HEADS, dim), zeros(pages, 16, KV_HEADS, dim_v)
    narrow_k, narrow_v = k[..., : dim // 2], v[..., : dim_v // 2]
    for run, name in planned_wrappers(dim, dim_v):
        run(good_q, (k, v))
        for q, pair, argument, what in (
            (narrow_q, (narrow_k, narrow_v), "q", f"head dim {dim}, as planned, got {dim // 2}"),
            (good_q, (narrow_k, v), name, f"keys of head dim {dim}, as planned, got {dim // 2}"),
            (good_q, (k, narrow_v), name, f"values of head dim {dim_v}, as planned, got {dim_v // 2}"),
        ):
            with pytest.raises(ValueError, match=rf"^{argument}: expected {what}$"):
                run(q, pair)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_what_is_no_query_or_no_pool_is_named(layout):
    pool, q = Pool(layout), queries()
    wrapper = prefill(pool, layout)
    k, v = pool.cache.unbind(1)
    for bad, cache, error, sentence in (
        (None, pool.cache, TypeError, "q: expected a tensor, got NoneType"),
        (q[0, 0, 0], pool.cache, ValueError, r"q: expected \[nnz, Hq, D\], got shape \[\]"),
        (q, None, TypeError, "paged_kv_cache: expected a tensor or a pair, got NoneType"),
        (q, (k, v, v), ValueError, "paged_kv_cache: expected a tensor or a pair, got 3 values"),
        (q, (k, None), TypeError, "paged_kv_cache: expected a tensor, got NoneType"),
        (q, (k[0], v), ValueError, r"paged_kv_cache: expected \[N, .*, D\], got shape"),
    ):
        with pytest.raises(error, match=f"^{sentence}"):
            wrapper.run(bad, cache)

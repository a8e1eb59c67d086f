"""A written argument shares no element with another one, nor with itself; views of one storage that lie apart may."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import chunkattn
from chunkattn.testing import AttentionCase, build
from chunkattn.validate import overlap

CASE = AttentionCase("overlap", (3, 1), (40, 17), num_q_heads=4, num_kv_heads=2)
BATCH = ("q", "k_cache", "v_cache", "block_table", "cu_seqlens_q", "seq_lens")


def view(of: Tensor, like: Tensor, offset: int = 0) -> Tensor:
    """Contiguous, like another tensor in shape and dtype, over memory of `of` from its byte `offset` on."""
    raw = torch.empty(0, dtype=torch.uint8).set_(of.untyped_storage())
    start = of.storage_offset() * of.element_size() + offset
    size = like.numel() * like.element_size()
    return raw[start : start + size].view(like.dtype).view(like.shape)


def attention_arguments() -> dict[str, Tensor]:
    inputs = build(CASE.but(alibi="head", sinks=True, tree=True))
    out, lse = inputs.empty_state(7.0)
    return {**dict(zip(BATCH, inputs.batch(), strict=True)), **inputs.options(), "out": out, "lse": lse}


def big(dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(4096, dtype=dtype)


# (arguments that share memory, what the message names: the written one, the other)
ATTENTION = {
    "out in k_cache": (lambda a: {"out": view(a["k_cache"], a["out"], 256)}, "out: expected memory .*k_cache"),
    "out in v_cache": (lambda a: {"out": view(a["v_cache"], a["out"])}, "out: expected memory .*v_cache"),
    "out is q": (lambda a: {"out": a["q"]}, "out: expected memory .*that q uses"),
    "out one row into q": (
        lambda a: (lambda pool: {"q": pool[:4].copy_(a["q"]), "out": pool[1:]})(big()[: 5 * 256].view(5, 4, 64)),
        "out: expected memory .*that q uses",
    ),
    "out over lse": (lambda a: {"lse": view(a["out"], a["lse"], 64)}, "out: expected memory .*that lse uses"),
    "lse in k_cache": (lambda a: {"lse": view(a["k_cache"], a["lse"])}, "lse: expected memory .*k_cache"),
    "lse is sinks": (
        lambda a: (lambda x: {"lse": x, "sinks": x[0]})(torch.zeros(4, 4)), "lse: expected memory .*that sinks uses"
    ),
    "lse over lengths": (
        lambda a: (lambda x: {"lse": x, "seq_lens": view(x, a["seq_lens"]).copy_(a["seq_lens"])})(torch.zeros(4, 4)),
        "lse: expected memory .*that seq_lens uses",
    ),
    "workspace over out": (
        lambda a: {"workspace": view(a["out"], torch.empty(512, dtype=torch.uint8))},
        "(out|workspace): expected memory .*(workspace|out)",
    ),
    "out onto itself": (
        lambda a: {"out": big().as_strided((4, 4, 64), (128, 32, 1))}, "out: expected .*lie apart.*strides"
    ),
    "lse onto itself": (lambda a: {"lse": torch.zeros(64).as_strided((4, 4), (2, 1))}, "lse: expected .*lie apart"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_refuses(name, backend):
    change, message = ATTENTION[name]
    arguments: dict = {"backend": backend, **attention_arguments()}

    def call():
        chunkattn.attention(*(arguments[n] for n in BATCH), **{n: a for n, a in arguments.items() if n not in BATCH})

    # A good call of the same shapes and strides comes first: a backend that remembers what it has checked must still
    # see the difference.
    changed = change(arguments)
    apart = {
        n: torch.empty(8192, dtype=t.dtype).as_strided(t.shape, t.stride()).copy_(t)
        for n, t in changed.items()
        if "onto itself" not in name
    }
    arguments.update(apart)
    call()
    arguments.update(changed)
    before = {n: t.clone() for n, t in arguments.items() if isinstance(t, Tensor)}
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    for n, old in before.items():
        assert torch.equal(arguments[n].view(torch.uint8), old.view(torch.uint8)), n


def test_attention_reads_one_tensor_as_k_and_v(backend):
    """K and V are only read: V may be a part of K, as in latent attention."""
    inputs = build(CASE, poison="zero")
    q, k_cache, _, *rest = inputs.batch()
    v_cache = k_cache[..., :32]
    out = chunkattn.attention(q, k_cache, v_cache, *rest, backend=backend)
    assert torch.equal(out, chunkattn.attention(q, k_cache, v_cache.clone(), *rest, backend=backend))


def test_attention_writes_beside_what_it_reads(backend):
    """out and q are parts of one packed tensor, and the pools of one fused pool."""
    inputs = build(CASE, poison="zero")
    q, k_cache, v_cache, *rest = inputs.batch()
    expected = chunkattn.attention(q, k_cache, v_cache, *rest, backend=backend)
    packed = torch.zeros(4, 2, 4, 64, dtype=q.dtype)
    packed[:, 0] = q
    fused = torch.stack((k_cache, v_cache), dim=1)
    for _ in range(2):
        packed[:, 1] = 7.0
        chunkattn.attention(packed[:, 0], *fused.unbind(1), *rest, out=packed[:, 1], backend=backend)
        assert torch.equal(packed[:, 1], expected)
    assert torch.equal(packed[:, 0], q)


def append_arguments(**changes: object) -> dict[str, object]:
    inputs = build(CASE, poison="zero")
    k, v = torch.ones(2, 4, 2, 64).bfloat16()
    names = ("k", "v", "k_cache", "v_cache", "block_table", "cu_seqlens_q", "seq_lens")
    return {**dict(zip(names, (k, v, inputs.k_cache, inputs.v_cache, *inputs.batch()[3:]), strict=True)), **changes}


ROPE = chunkattn.Rope(torch.ones(60, 32), torch.zeros(60, 32))
APPEND = {
    "one pool": (lambda a: {"v_cache": a["k_cache"]}, "k_cache: expected memory .*that v_cache uses"),
    "v_cache one head into k_cache": (
        lambda a: (lambda pool: {"k_cache": pool[:, :, :2], "v_cache": pool[:, :, 1:]})(
            torch.zeros(9, 16, 3, 64).bfloat16()
        ),
        "k_cache: expected memory .*that v_cache uses",
    ),
    "k in k_cache": (lambda a: {"k": view(a["k_cache"], a["k"])}, "k_cache: expected memory .*that k uses"),
    "v in k_cache": (lambda a: {"v": view(a["k_cache"], a["v"], 128)}, "k_cache: expected memory .*that v uses"),
    "k in v_cache": (lambda a: {"k": view(a["v_cache"], a["k"])}, "v_cache: expected memory .*that k uses"),
    "table in v_cache": (
        lambda a: {"block_table": view(a["v_cache"], a["block_table"])}, "v_cache: expected memory .*block_table"
    ),
    "q is k": (lambda a: {"q": a["k"], "rope": ROPE}, "q: expected memory .*that k uses"),
    "q one head into k": (
        lambda a: (lambda x: {"q": x[:, :3], "k": x[:, 2:], "rope": ROPE})(torch.ones(4, 4, 64).bfloat16()),
        "q: expected memory .*that k uses",
    ),
    "q over cos": (
        lambda a: (lambda x: {"q": view(x, torch.empty(4, 4, 64).bfloat16()), "rope": chunkattn.Rope(x, x.clone())})(
            torch.ones(60, 32)
        ),
        "q: expected memory .*that rope.cos uses",
    ),
    "one token scale": (
        lambda a: {
            **{n: a[n].to(torch.int8) for n in ("k_cache", "v_cache")},
            **dict.fromkeys(("k_scale", "v_scale"), torch.ones(a["k_cache"].shape[:3])),
        },
        "k_scale: expected memory .*that v_scale uses",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", APPEND)
def test_append_kv_refuses(name, backend):
    change, message = APPEND[name]
    arguments = append_arguments()
    changed = change(arguments)
    apart = {n: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) if isinstance(t, Tensor) else t
             for n, t in changed.items()}  # fmt: skip
    if name == "q over cos":
        apart["rope"] = ROPE
    chunkattn.append_kv(**{**arguments, **apart}, backend=backend)  # the same shapes, remembered or not
    arguments.update(changed)
    before = {n: t.clone() for n, t in arguments.items() if isinstance(t, Tensor)}
    with pytest.raises(ValueError, match=message):
        chunkattn.append_kv(**arguments, backend=backend)
    for n, old in before.items():
        assert torch.equal(arguments[n], old), n


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_append_kv_into_a_fused_pool_from_a_packed_tensor(layout, backend):
    """The usual views: K and V of one pool, q, k and v of one projection, one scale read twice."""
    plain = append_arguments(rope=ROPE)
    packed = torch.randn(4, 8, 64).bfloat16()
    q, k, v = packed.split((4, 2, 2), dim=1)
    plain |= {"q": q.clone(), "k": k.clone(), "v": v.clone()}
    plain |= {n: torch.zeros_like(plain[n]) for n in ("k_cache", "v_cache")}
    pages, page_size = plain["k_cache"].shape[:2]
    shape = (pages, 2, page_size, 2, 64) if layout == "NHD" else (pages, 2, 2, page_size, 64)
    fused = chunkattn.PagedKV.from_fused(torch.zeros(shape).bfloat16(), layout)
    chunkattn.append_kv(**plain, backend=backend)
    views = {"q": q, "k": k, "v": v, "k_cache": fused.k_cache, "v_cache": fused.v_cache}
    chunkattn.append_kv(**{**plain, **views}, backend=backend)
    for name in ("q", "k_cache", "v_cache"):
        assert torch.equal(views[name], plain[name]), name
    scale = torch.ones(())
    quantised = {name: plain[name].to(torch.int8) for name in ("k_cache", "v_cache")}
    chunkattn.append_kv(**{**plain, **quantised, "k_scale": scale, "v_scale": scale}, backend=backend)


def states() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        "out_a": torch.randn(5, 2, 16), "lse_a": torch.randn(5, 2),
        "out_b": torch.randn(5, 2, 16), "lse_b": torch.randn(5, 2),
    }  # fmt: skip


@pytest.mark.parametrize("out", ["out_a", "out_b"])
@pytest.mark.parametrize("lse", ["lse_a", "lse_b"])
def test_merge_states_in_place(out, lse, backend):
    expected = chunkattn.merge_states(**states(), backend=backend)
    a = states()
    chunkattn.merge_states(**a, out=a[out], lse=a[lse], backend=backend)
    assert torch.equal(a[out], expected[0])
    assert torch.equal(a[lse], expected[1])


def test_merge_states_of_one_token_in_place(backend):
    """A dim of one has any stride."""
    a = {name: state[:1] for name, state in states().items()}
    expected = chunkattn.merge_states(**a, backend=backend)
    same = a["out_a"].as_strided((1, 2, 16), (7, 16, 1))
    chunkattn.merge_states(**a, out=same, backend=backend)
    assert torch.equal(a["out_a"], expected[0])


MERGE = {
    "out one row into out_a": (
        lambda a: (lambda x: {"out_a": x[:5], "out": x[1:]})(torch.zeros(6, 2, 16)), "out: expected memory .*out_a"
    ),
    "out_b transposed": (
        lambda a: (lambda x: {"out_b": x, "out": x.transpose(0, 1), "out_a": x.clone(), "lse_a": torch.zeros(2, 2),
                              "lse_b": torch.zeros(2, 2)})(torch.zeros(2, 2, 16)),
        "out: expected memory .*out_b",
    ),
    "lse one row into lse_b": (
        lambda a: (lambda x: {"lse_b": x[:5], "lse": x[1:]})(torch.zeros(6, 2)), "lse: expected memory .*lse_b"
    ),
    "lse in out": (lambda a: (lambda x: {"out": x, "lse": view(x, a["lse_a"])})(torch.zeros(5, 2, 16)),
                   "out: expected memory .*lse"),
    "lse_a in out": (lambda a: (lambda x: {"out": x, "lse_a": view(x, a["lse_a"])})(torch.zeros(5, 2, 16)),
                     "out: expected memory .*lse_a"),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGE)
def test_merge_states_refuses(name, backend):
    change, message = MERGE[name]
    arguments = states()
    arguments.update(change(arguments))
    with pytest.raises(ValueError, match=message):
        chunkattn.merge_states(**arguments, backend=backend)


def test_page_operators_refuse(backend):
    pool, ids = torch.arange(64.0).view(8, 8), torch.tensor([0, 1])
    before = pool.clone()
    with pytest.raises(ValueError, match=r"out: expected memory .*that cache uses"):
        chunkattn.gather_pages(pool, ids, out=pool[4:6], backend=backend)
    with pytest.raises(ValueError, match=r"cache: expected memory .*that block uses"):
        chunkattn.scatter_pages(pool[4:6], pool, ids, backend=backend)
    with pytest.raises(ValueError, match=r"cache: expected memory .*that target uses"):
        chunkattn.copy_pages(pool, ids, view(pool, ids, 16), backend=backend)
    assert torch.equal(pool, before)
    # The dense side may lie between the pool's pages.
    wide = torch.arange(128.0).view(8, 2, 8)
    chunkattn.gather_pages(wide[:, 0], ids, out=wide[4:6, 1], backend=backend)
    assert torch.equal(wide[4:6, 1], wide[:2, 0])


def test_a_plan_is_apart_from_its_lengths(backend):
    inputs = build(CASE)
    facts = (4, 2, 64, 64, 16, torch.float32, True, -1, -1, False, 0, "NHD", backend)
    plan = chunkattn.plan(
        inputs.cu_seqlens_q, inputs.seq_lens, num_q_heads=4, num_kv_heads=2, head_dim=64, page_size=16,
        dtype=torch.float32, backend=backend,
    )  # fmt: skip
    words = torch.zeros_like(plan.words)
    lens = view(words, inputs.seq_lens).copy_(inputs.seq_lens)
    with pytest.raises(ValueError, match=r"words: expected memory .*that seq_lens uses"):
        torch.ops.chunkattn.plan(inputs.cu_seqlens_q, lens, words, *facts)


def addresses(tensor: Tensor) -> list[int]:
    first = tensor.storage_offset() * tensor.element_size()
    return [
        first + sum(i * stride for i, stride in zip(index, tensor.stride(), strict=True)) * tensor.element_size() + byte
        for index in itertools.product(*map(range, tensor.shape))
        for byte in range(tensor.element_size())
    ]


STORAGE = torch.zeros(1024, dtype=torch.uint8)
views = st.builds(
    lambda dtype, dims, offset: (
        torch.empty(0, dtype=dtype)
        .set_(STORAGE.untyped_storage())
        .as_strided([size for size, _ in dims], [stride for _, stride in dims], offset)
    ),
    st.sampled_from([torch.int8, torch.bfloat16, torch.float32]),
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 3, 4, 6, 8, 9, 12, 16])), min_size=1, max_size=4),
    st.integers(0, 50),
)


@settings(max_examples=400, deadline=None)
@given(views, views)
def test_elements_decide(a, b):
    """Against all addresses written out."""
    itself = len(set(addresses(a))) < len(addresses(a))
    crosses = not set(addresses(a)).isdisjoint(addresses(b))
    if itself or crosses:
        with pytest.raises(ValueError, match=r"^a: expected"):
            overlap.apart((("a", a),), (("b", b),))
    else:
        overlap.apart((("a", a),), (("b", b),))

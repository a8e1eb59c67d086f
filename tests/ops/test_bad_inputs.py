"""Bad input gets one clear sentence, ``argument: expected …, got …``, and nothing is written."""

from __future__ import annotations

import math

import pytest
import torch

import chunkattn
from chunkattn.testing import AttentionCase, build

CASE = AttentionCase("bad", (3, 1), (40, 17), num_q_heads=4, num_kv_heads=2)
I32 = torch.int32
V, T = ValueError, TypeError


def call_arguments(case: AttentionCase = CASE) -> dict[str, object]:
    inputs = build(case)
    out, lse = inputs.empty_state(7.0)
    names = ("q", "k_cache", "v_cache", "block_table", "cu_seqlens_q", "seq_lens")
    return {**dict(zip(names, inputs.batch(), strict=True)), **inputs.options(), "out": out, "lse": lse}


def scaled(values):
    """The arguments of a call with an fp8 cache and scales per head."""
    return call_arguments(CASE.but(kv_dtype=torch.float8_e4m3fn, scale_mode="head"))


# (change of the arguments, error, its message)
ATTENTION: dict[str, tuple] = {
    "q not a tensor": (lambda a: {"q": [1, 2]}, T, "q: expected a tensor, got list"),
    "q None": (lambda a: {"q": None}, T, "q: expected a tensor, got NoneType"),
    "q rank 2": (lambda a: {"q": a["q"][0]}, V, "q: expected"),
    "q rank 4": (lambda a: {"q": a["q"][None]}, V, "q: expected"),
    "q int": (lambda a: {"q": a["q"].int()}, T, "q: expected bfloat16, float16 or float32, got torch.int32"),
    "q float32": (lambda a: {"q": a["q"].float()}, T,
                  "^q: expected torch.bfloat16, the dtype of k_cache, got torch.float32"),
    "q float64": (lambda a: {"q": a["q"].double()}, T, "q: expected .* got torch.float64"),
    "q strided": (lambda a: {"q": torch.empty(4, 4, 128).bfloat16()[..., ::2]}, V, "q: expected .*stride"),
    "q other head dim": (lambda a: {"q": a["q"][..., :56]}, V, "q: expected .*64"),
    "q 3 heads": (lambda a: {"q": a["q"][:, :3].contiguous()}, V, "q: expected .*multiple of the 2"),
    "q no heads": (lambda a: {"q": a["q"][:, :0]}, V, "q: expected"),
    "q on meta": (lambda a: {"q": a["q"].to("meta")}, V, "expected a tensor on"),
    "q sparse": (lambda a: {"q": a["q"].to_sparse()}, V, "^q: expected a dense tensor, got .*sparse_coo"),
    "q nested": (lambda a: {"q": torch.nested.nested_tensor([a["q"], a["q"][:2]])}, V, "^q: .* dense .*nested"),
    "table sparse": (lambda a: {"block_table": a["block_table"].to_sparse_csr()}, V, "^block_table: .* dense .*sparse"),
    "q needs gradient": (lambda a: {"q": a["q"].clone().requires_grad_()}, V, "q: expected .*gradient"),
    "k rank 3": (lambda a: {"k_cache": a["k_cache"][0]}, V, "k_cache: expected"),
    "k float32": (lambda a: {"k_cache": a["k_cache"].float()}, T, "^k_cache: expected torch.bfloat16, float8_e4m3fn"),
    "k strided": (lambda a: {"k_cache": a["k_cache"].transpose(2, 3)}, V, "(k_cache|v_cache|q): expected"),
    "k head dim 60": (
        lambda a: {"k_cache": a["k_cache"][..., :60], "q": a["q"][..., :60]}, V, "multiple of 8.*got 60"
    ),
    "head dim 0": (
        lambda a: {name: a[name][..., :0] for name in ("q", "k_cache", "v_cache", "out")}, V,
        "^k_cache: expected a head dim .*, got 0$"
    ),
    "k head dim 264": (
        lambda a: {"k_cache": torch.zeros(9, 16, 2, 264).bfloat16(), "q": torch.zeros(4, 4, 264).bfloat16(),
                   "v_cache": a["v_cache"][:9]},
        V, "up to 256.*got 264",
    ),
    "v rank 5": (lambda a: {"v_cache": a["v_cache"][None]}, V, "v_cache: expected"),
    "v other pages": (lambda a: {"v_cache": a["v_cache"][1:]}, V, "v_cache: expected"),
    "v other heads": (lambda a: {"v_cache": a["v_cache"][:, :, :1]}, V, "v_cache: expected"),
    "v other dtype": (lambda a: {"v_cache": a["v_cache"].half()}, T, "v_cache: expected torch.bfloat16"),
    "table int64": (lambda a: {"block_table": a["block_table"].long()}, T, "block_table: expected torch.int32"),
    "table rank 1": (lambda a: {"block_table": a["block_table"][0]}, V, "block_table: expected"),
    "table 3 rows": (lambda a: {"block_table": torch.zeros(3, 4, dtype=I32)}, V, "block_table: expected"),
    "table too narrow": (lambda a: {"block_table": a["block_table"][:, :2]}, V, "seq_lens: .*32.*got 40"),
    "table without columns": (lambda a: {"block_table": a["block_table"][:, :0]}, V, "seq_lens: .*got 40 for"),
    "cu int64": (lambda a: {"cu_seqlens_q": a["cu_seqlens_q"].long()}, T, "cu_seqlens_q: expected torch.int32"),
    "cu too long": (lambda a: {"cu_seqlens_q": torch.zeros(4, dtype=I32)}, V, "cu_seqlens_q: expected"),
    "cu empty": (lambda a: {"cu_seqlens_q": torch.zeros(0, dtype=I32)}, V, "cu_seqlens_q: expected"),
    "cu not from 0": (lambda a: {"cu_seqlens_q": torch.tensor([1, 3, 4], dtype=I32)}, V, "cu_seqlens_q: expected"),
    "cu falling": (lambda a: {"cu_seqlens_q": torch.tensor([0, 3, 1], dtype=I32)}, V, "cu_seqlens_q: expected"),
    "cu beyond T": (lambda a: {"cu_seqlens_q": torch.tensor([0, 3, 5], dtype=I32)}, V,
                    r"cu_seqlens_q: expected at most 4 tokens \(T of q\), got 5"),
    "cu negative": (lambda a: {"cu_seqlens_q": torch.tensor([0, -1, 4], dtype=I32)}, V, "cu_seqlens_q: expected"),
    "cu huge": (lambda a: {"cu_seqlens_q": torch.tensor([0, 2**31 - 1, 4], dtype=I32)}, V, "cu_seqlens_q"),
    "lens int64": (lambda a: {"seq_lens": a["seq_lens"].long()}, T, "seq_lens: expected torch.int32"),
    "lens float": (lambda a: {"seq_lens": a["seq_lens"].float()}, T, "seq_lens: expected torch.int32"),
    "lens rank 2": (lambda a: {"seq_lens": a["seq_lens"][None]}, V, "seq_lens: expected"),
    "lens negative": (lambda a: {"seq_lens": torch.tensor([40, -1], dtype=I32)}, V, "seq_lens: expected .*request 1"),
    "lens huge": (lambda a: {"seq_lens": torch.tensor([2**31 - 1, 4], dtype=I32)}, V, "seq_lens: expected .*request 0"),
    "lens strided": (lambda a: {"seq_lens": torch.full((4,), 3, dtype=I32)[::2]}, V, "seq_lens: expected"),
    "pool without pages": (lambda a: {n: a[n][:0] for n in ("k_cache", "v_cache")}, V,
                           "block_table: expected no page id, since the pool has no pages, got"),
    "page -1": (lambda a: {"block_table": a["block_table"] * 0 - 1}, V, "block_table: expected .*got -1.*0, column 0"),
    "out float32": (lambda a: {"out": a["out"].float()}, T, "out: expected torch.bfloat16"),
    "out too short": (lambda a: {"out": a["out"][:-1]}, V, "out: expected"),
    "out too wide": (lambda a: {"out": torch.zeros(4, 4, 72).bfloat16()}, V, "out: expected"),
    "out strided": (lambda a: {"out": torch.zeros(4, 4, 128).bfloat16()[..., ::2]}, V, "out: expected .*stride"),
    "out repeated": (lambda a: {"out": a["out"][:, :1].expand(4, 4, 64)}, V, "out: expected .*stride 0 in a dim of 4"),
    "lse repeated": (lambda a: {"lse": a["lse"][:1].expand(4, 4)}, V, "lse: expected .*stride 0 in a dim of 4"),
    "out not a tensor": (lambda a: {"out": 3}, T, "out: expected a tensor"),
    "lse bfloat16": (lambda a: {"lse": a["lse"].bfloat16()}, T, "lse: expected torch.float32"),
    "lse transposed shape": (lambda a: {"lse": torch.zeros(4, 2)}, V, "lse: expected"),
    "slopes float64": (lambda a: {"alibi_slopes": torch.zeros(4).double()}, T, "alibi_slopes: expected torch.float32"),
    "slopes 3 heads": (lambda a: {"alibi_slopes": torch.zeros(3)}, V, "alibi_slopes: expected"),
    "slopes 3 requests": (lambda a: {"alibi_slopes": torch.zeros(3, 4)}, V, "alibi_slopes: expected"),
    "sinks bfloat16": (lambda a: {"sinks": torch.zeros(4).bfloat16()}, T, "sinks: expected torch.float32"),
    "sinks KV heads": (lambda a: {"sinks": torch.zeros(2)}, V, "sinks: expected"),
    "sinks need gradient": (lambda a: {"sinks": torch.zeros(4).requires_grad_()}, V, "^sinks: expected .*gradient"),
    "slopes need gradient": (lambda a: {"alibi_slopes": torch.zeros(4, requires_grad=True)}, V, "^alibi.*gradient"),
    "scale needs gradient": (lambda a: {**scaled(a), "k_scale": torch.ones(2).requires_grad_()}, V, "^k_.*gradient"),
    "tree bool": (lambda a: {"tree_mask": torch.ones(4, 1).bool()}, T, "tree_mask: expected torch.int32"),
    "tree other T": (lambda a: {"tree_mask": torch.ones(3, 1, dtype=I32)}, V, "tree_mask: expected"),
    "tree without words": (lambda a: {"tree_mask": torch.ones(4, 0, dtype=I32)}, V, "tree_mask: expected"),
    "scale of a plain cache": (lambda a: {"k_scale": torch.tensor(0.5)}, V, "k_scale: expected no scale"),
    "scale float64": (lambda a: {**scaled(a), "k_scale": torch.ones(2).double()}, T, "k_scale: expected torch.float32"),
    "scale 3 heads": (lambda a: {**scaled(a), "v_scale": torch.ones(3)}, V, "v_scale: expected"),
    "scale rank 2": (lambda a: {**scaled(a), "v_scale": torch.ones(9, 2)}, V, "v_scale: expected"),
    "scale of other pages": (lambda a: {**scaled(a), "k_scale": torch.ones(3, 16, 2)}, V, "k_scale: expected"),
    "window 3 numbers": (lambda a: {"window": (1, 2, 3)}, V, "window: expected a pair"),
    "window a number": (lambda a: {"window": 128}, V, "window: expected a pair"),
    "window -2": (lambda a: {"window": (-2, 0)}, V, "window: expected"),
    "window of flags": (lambda a: {"window": (True, 0)}, V, "window: expected"),
    "return_lse None": (lambda a: {"return_lse": None}, T, "return_lse: expected True or False, got NoneType"),
    "causal 1": (lambda a: {"causal": 1}, T, "causal: expected True or False, got int"),
    "softcap text": (lambda a: {"softcap": "30"}, T, "softcap: expected a number, got str"),
    "window float": (lambda a: {"window": (1.5, 0)}, V, "window: expected"),
    "softcap negative": (lambda a: {"softcap": -1.0}, V, "softcap: expected"),
    "softcap NaN": (lambda a: {"softcap": math.nan}, V, "softcap: expected"),
    "softcap infinite": (lambda a: {"softcap": math.inf}, V, r"softcap: expected 0 \(off\) or a positive number"),
    "softcap beyond fp32": (lambda a: {"softcap": 1e39}, V, "softcap: expected .* that fp32 holds, got 1e.39"),
    "softcap 0 in fp32": (lambda a: {"softcap": 1e-46}, V, "softcap: expected .* that fp32 holds, got 1e-46"),
    "softcap beyond fp64": (lambda a: {"softcap": 10**400}, V, "softcap: expected a number that fp64 holds, got"),
    "scale beyond fp32": (lambda a: {"softmax_scale": -1e39}, V, "softmax_scale: expected .* fp32 holds, got -1e.39"),
    "scale infinite": (lambda a: {"softmax_scale": math.inf}, V, "softmax_scale: expected"),
    "splits negative": (lambda a: {"num_splits": -1}, V,
                        r"num_splits: expected None or 0 \(planned\), or an integer up to 1024, got -1"),
    "splits a flag": (lambda a: {"num_splits": True}, V, "num_splits: expected .*got True"),
    "splits huge": (lambda a: {"num_splits": 2**40}, V, "num_splits: expected"),
    "splits and invariant": (lambda a: {"num_splits": 2, "invariant": True}, V, "num_splits: expected"),
    "plan not a plan": (lambda a: {"plan": torch.zeros(4)}, T, "plan: expected a chunkattn.Plan"),
    "plan without words": (
        lambda a: {"plan": chunkattn.Plan(torch.zeros(0).long(), a["backend"], 4, 2, 0)}, V, "plan: expected the output"
    ),
    "workspace float": (lambda a: {"workspace": torch.zeros(4096)}, T, "workspace: expected torch.uint8"),
    "workspace rank 2": (lambda a: {"workspace": torch.zeros(4, 4).byte()}, V, "workspace: expected"),
    "unknown backend": (lambda a: {"backend": "cudnn"}, V, "backend: expected one of"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_refuses(name, backend):
    change, error, message = ATTENTION[name]
    arguments = {"backend": backend, **call_arguments()}
    order = ("q", "k_cache", "v_cache", "block_table", "cu_seqlens_q", "seq_lens")
    # A good call comes first: a backend that remembers what it has checked must still see the difference.
    chunkattn.attention(*(arguments[n] for n in order), **{n: a for n, a in arguments.items() if n not in order})
    arguments["out"].fill_(7.0)
    arguments["lse"].fill_(7.0)
    arguments.update(change(arguments))
    written = [arguments[n] for n in ("out", "lse") if isinstance(arguments[n], torch.Tensor)]
    before = [tensor.clone() for tensor in written]
    positional = [arguments.pop(n) for n in order]
    with pytest.raises(error, match=message) as caught:
        chunkattn.attention(*positional, **arguments)
    assert "\n" not in str(caught.value)
    for tensor, old in zip(written, before, strict=True):
        assert torch.equal(tensor, old)


def test_direct_calls_of_the_op_are_checked_too(backend):
    a = call_arguments()
    tail = (None,) * 8 + (0.125, True, -1, -1, 0.0, False, 0, backend)
    batch = [a[n] for n in ("q", "k_cache", "v_cache", "block_table", "cu_seqlens_q", "seq_lens", "out")]
    torch.ops.chunkattn.attention(*batch, None, *tail[1:])
    for index, wrong in ((3, batch[3].long()), (4, batch[4][:-1]), (0, batch[0][..., :32]), (6, batch[6].float())):
        changed = [wrong if i == index else tensor for i, tensor in enumerate(batch)]
        with pytest.raises((ValueError, TypeError), match="expected"):
            torch.ops.chunkattn.attention(*changed, None, *tail[1:])


def test_none_for_a_tensor_of_an_op_is_named(backend):
    """The dispatcher lets it pass."""
    a = call_arguments()
    tail = (None,) * 8 + (0.125, True, -1, -1, 0.0, False, 0, backend)
    names = ("q", "k_cache", "v_cache", "block_table", "cu_seqlens_q", "seq_lens", "out")
    for name in names:
        with pytest.raises(TypeError, match=f"^{name}: expected a tensor, got NoneType"):
            torch.ops.chunkattn.attention(*(None if n == name else a[n] for n in names), None, *tail[1:])
    pool, ids = torch.zeros(8, 4), torch.tensor([1])
    for name, values in (("cache", (None, ids, ids)), ("source", (pool, None, ids)), ("target", (pool, ids, None))):
        with pytest.raises(TypeError, match=f"^{name}: expected a tensor, got NoneType"):
            torch.ops.chunkattn.copy_pages(*values, backend)


def append_arguments() -> dict[str, object]:
    inputs = build(CASE, poison="zero")
    k, v = torch.ones(2, 4, 2, 64).bfloat16()
    batch = (inputs.k_cache, inputs.v_cache, *inputs.batch()[3:])
    names = ("k", "v", "k_cache", "v_cache", "block_table", "cu_seqlens_q", "seq_lens")
    return dict(zip(names, (k, v, *batch), strict=True))


def rope(positions=60, half=32, dtype=torch.float32, where=None):
    return chunkattn.Rope(torch.ones(positions, half, dtype=dtype), torch.ones(positions, half, dtype=dtype), where)


APPEND: dict[str, tuple] = {
    "k rank 2": (lambda a: {"k": a["k"][0]}, V, "k: expected"),
    "k int8": (lambda a: {"k": a["k"].char(), "v": a["v"].char()}, T, "k: expected bfloat16, float16 or float32"),
    "k other heads": (lambda a: {"k": a["k"][:, :1], "v": a["v"][:, :1]}, V, "k: expected"),
    "k other dim": (lambda a: {"k": a["k"][..., :32]}, V, "k: expected"),
    "k and v other dtype": (
        lambda a: {"k": a["k"].float(), "v": a["v"].float()}, T,
        "^k: expected torch.bfloat16, the dtype of k_cache, got torch.float32",
    ),
    "k other dtype": (lambda a: {"k": a["k"].float()}, T,
                      "^k: expected torch.bfloat16, the dtype of k_cache, got torch.float32"),
    "k_cache other dtype": (lambda a: {"k_cache": a["k_cache"].half()}, T, "^k_cache: expected torch.bfloat16, float8"),
    "v_cache other dtype": (lambda a: {"v_cache": a["v_cache"].half()}, T, "^v_cache: expected torch.bfloat16, the"),
    "cache int32": (lambda a: {n: a[n].int() for n in ("k_cache", "v_cache")}, T, "^k_cache: expected .*torch.int32"),
    "pool without pages": (lambda a: {n: a[n][:0] for n in ("k_cache", "v_cache")}, V,
                           "block_table: expected no page id, since the pool has no pages, got"),
    "slots of no pages": (
        lambda a: {**{n: a[n][:0] for n in ("k_cache", "v_cache")}, "slot_mapping": torch.zeros(4).int()}, V,
        "slot_mapping: expected -1 or no slot, since the pool has no pages, got 0",
    ),
    "scale a number": (lambda a: {"k_scale": 0.5}, T, "k_scale: expected a tensor or None, got float"),
    "cos a number": (
        lambda a: {"rope": chunkattn.Rope(1.0, 2.0)}, T, "rope.cos: expected a tensor or None, got float"
    ),
    "backend a number": (lambda a: {"backend": 3}, T, "backend: expected a name or None, got int"),
    "k sparse": (lambda a: {"k": a["k"].to_sparse()}, V, "^k: expected a dense tensor, got .*sparse_coo"),
    "k needs gradient": (lambda a: {"k": a["k"].clone().requires_grad_()}, V, "^k: expected .*gradient"),
    "cos needs gradient": (
        lambda a: {"rope": chunkattn.Rope(torch.ones(60, 32, requires_grad=True), torch.ones(60, 32))}, V,
        "^rope.cos: expected .*gradient",
    ),
    "k strided": (lambda a: {"k": torch.ones(4, 2, 128).bfloat16()[..., ::2]}, V, "k: expected .*stride"),
    "k head dim 264": (
        lambda a: {"k": torch.ones(4, 2, 264).bfloat16(), "k_cache": torch.zeros(9, 16, 2, 264).bfloat16(),
                   "v_cache": a["v_cache"][:9]},
        V, "^k_cache: expected a head dim from 1 to 256, got 264$",
    ),
    "v head dim 257": (
        lambda a: {"v": torch.ones(4, 2, 257).bfloat16(), "v_cache": torch.zeros(9, 16, 2, 257).bfloat16(),
                   "k_cache": a["k_cache"][:9]},
        V, "^v_cache: expected a head dim from 1 to 256, got 257$",
    ),
    "v head dim 0": (
        lambda a: {"v": a["v"][..., :0], "v_cache": a["v_cache"][..., :0]}, V, "^v_cache: expected .* from 1 .*got 0$"
    ),
    "v other T": (lambda a: {"v": a["v"][1:]}, V, "v: expected"),
    "v other dim": (lambda a: {"v": a["v"][..., :32]}, V, "v: expected"),
    "v other dtype": (lambda a: {"v": a["v"].half()}, T, "v: expected torch.bfloat16"),
    "cache not a tensor": (lambda a: {"k_cache": None}, T, "k_cache: expected a tensor"),
    "cache repeated": (lambda a: {"k_cache": a["k_cache"][:1].expand(9, -1, -1, -1),
                                  "v_cache": a["v_cache"][:9]}, V, "k_cache: expected .*stride 0 in a dim of 9"),
    "q repeated": (
        lambda a: {"q": torch.ones(4, 1, 64).bfloat16().expand(4, 8, 64), "rope": rope()}, V, "q: expected .*stride 0"
    ),
    "table int64": (lambda a: {"block_table": a["block_table"].long()}, T, "block_table: expected torch.int32"),
    "shorter than its chunk": (lambda a: {"seq_lens": torch.tensor([2, 17], dtype=I32)}, V, "seq_lens: expected"),
    "lens negative": (lambda a: {"seq_lens": torch.tensor([40, -3], dtype=I32)}, V, "seq_lens: expected"),
    "cu beyond T": (lambda a: {"cu_seqlens_q": torch.tensor([0, 3, 9], dtype=I32)}, V,
                    r"cu_seqlens_q: expected at most 4 tokens \(T of k\), got 9"),
    "page outside": (lambda a: {"block_table": a["block_table"] * 0 + 99}, V, "block_table: expected .*got 99"),
    "slots float": (lambda a: {"slot_mapping": torch.zeros(4)}, T, "slot_mapping: expected"),
    "slots rank 2": (lambda a: {"slot_mapping": torch.zeros(2, 2).int()}, V, "slot_mapping: expected"),
    "slots too many": (lambda a: {"slot_mapping": torch.zeros(5).int()}, V, "slot_mapping: expected"),
    "slot outside": (lambda a: {"slot_mapping": torch.tensor([0, 1, 10**6, 2])}, V, "slot_mapping: expected .*1000000"),
    "scale of a plain cache": (lambda a: {"v_scale": torch.tensor(1.0)}, V, "v_scale: expected no scale"),
    "q without rope": (lambda a: {"q": torch.ones(4, 4, 64).bfloat16()}, V, "q: expected None without rope"),
    "q other T": (lambda a: {"q": torch.ones(3, 4, 64).bfloat16(), "rope": rope()}, V, "q: expected"),
    "q other dtype": (lambda a: {"q": torch.ones(4, 4, 64), "rope": rope()}, T, "q: expected"),
    "rope not a Rope": (lambda a: {"rope": (1, 2)}, T, "rope: expected a chunkattn.Rope"),
    "rope bfloat16": (lambda a: {"rope": rope(dtype=torch.bfloat16)}, T, "rope.cos: expected torch.float32"),
    "rope too wide": (lambda a: {"rope": rope(half=33)}, V, "rope.cos: expected"),
    "rope too short": (lambda a: {"rope": rope(positions=39)}, V, "rope.cos: expected .*39"),
    "rope other sin": (
        lambda a: {"rope": chunkattn.Rope(torch.ones(60, 32), torch.ones(60, 16))}, V, "rope.sin: expected"
    ),
    "positions int32": (lambda a: {"rope": rope(where=torch.zeros(4).int())}, T, "rope.positions: expected"),
    "positions other T": (lambda a: {"rope": rope(where=torch.zeros(3).long())}, V, "rope.positions: expected"),
    "position outside": (lambda a: {"rope": rope(where=torch.tensor([0, 1, 60, 2]))}, V, "expected .*60"),
    "position negative": (lambda a: {"rope": rope(where=torch.tensor([0, -1, 6, 2]))}, V, "expected .*-1"),
}  # fmt: skip


@pytest.mark.parametrize("name", APPEND)
def test_append_kv_refuses(name, backend):
    change, error, message = APPEND[name]
    arguments = {"backend": backend, **append_arguments()}
    chunkattn.append_kv(**arguments)  # as above: what was checked may be remembered
    arguments.update(change(arguments))
    written = [arguments[n] for n in ("k_cache", "v_cache", "q") if isinstance(arguments.get(n), torch.Tensor)]
    before = [tensor.clone() for tensor in written]
    names = ("k", "v", "k_cache", "v_cache", "block_table", "cu_seqlens_q", "seq_lens")
    positional = [arguments.pop(n) for n in names]
    with pytest.raises(error, match=message) as caught:
        chunkattn.append_kv(*positional, **arguments)
    assert "\n" not in str(caught.value)
    for tensor, old in zip(written, before, strict=True):
        assert torch.equal(tensor, old)


def merge_arguments() -> dict[str, torch.Tensor]:
    names = ("out_a", "lse_a", "out_b", "lse_b")
    shapes = ((3, 2, 16), (3, 2)) * 2
    return {name: torch.zeros(shape) for name, shape in zip(names, shapes, strict=True)}


MERGE: dict[str, tuple] = {
    "other shape": (lambda a: {"out_b": a["out_b"][1:]}, V, "out_b: expected"),
    "other dtype": (lambda a: {"out_b": a["out_b"].half()}, T, "out_b: expected"),
    "int": (lambda a: {"out_a": a["out_a"].int()}, T, "out_a: expected"),
    "rank 2": (lambda a: {"out_a": a["out_a"][0]}, V, "out_a: expected"),
    "head dim 264": (lambda a: {n: torch.zeros(3, 2, 264) for n in ("out_a", "out_b")}, V, "out_a: .*256.*got .*264"),
    "no head dim": (lambda a: {n: torch.zeros(3, 2, 0) for n in ("out_a", "out_b")}, V, "out_a: .*from 1"),
    "out a number": (lambda a: {"out": 3.0}, T, "out: expected a tensor, got float"),
    "backend a number": (lambda a: {"backend": 3}, T, "backend: expected a name or None, got int"),
    "lse needs gradient": (lambda a: {"lse_b": a["lse_b"].requires_grad_()}, V, "^lse_b: expected .*gradient"),
    "sparse": (lambda a: {"out_b": a["out_b"].to_sparse()}, V, "^out_b: expected a dense tensor"),
    "lse half": (lambda a: {"lse_a": a["lse_a"].half()}, T, "lse_a: expected torch.float32"),
    "lse shape": (lambda a: {"lse_b": a["lse_b"].T}, V, "lse_b: expected"),
    "not a tensor": (lambda a: {"lse_b": 3.0}, T, "lse_b: expected a tensor"),
    "out strided": (lambda a: {"out": torch.zeros(3, 2, 32)[..., ::2]}, V, "out: expected"),
    "out repeated": (lambda a: {"out": torch.zeros(1, 2, 16).expand(3, 2, 16)}, V, "out: expected .*stride 0"),
    "strided": (lambda a: {"out_b": torch.zeros(3, 2, 32)[..., ::2]}, V, "out_b: expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGE)
def test_merge_states_refuses(name, backend):
    change, error, message = MERGE[name]
    arguments = merge_arguments()
    arguments.update(change(arguments))
    with pytest.raises(error, match=message):
        chunkattn.merge_states(**{"backend": backend, **arguments})


PLAN_FACTS = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "page_size": 16, "dtype": torch.float32}
PLAN: dict[str, tuple] = {
    "heads": ({"num_q_heads": 5}, V, "num_q_heads: expected"),
    "no KV heads": ({"num_kv_heads": 0}, V, "num_q_heads: expected"),
    "head dim": ({"head_dim": 63}, V, "head_dim: expected"),
    "page size": ({"page_size": 0}, V, "page_size: expected"),
    "page size huge": ({"page_size": 2**40}, V, "page_size: expected at most 2147483647, got 1099511627776"),
    "heads huge": ({"num_q_heads": 2**70}, V, "num_q_heads: expected at most 2147483647, got 1180591620717411303424"),
    "heads float": ({"num_q_heads": 4.0}, T, "num_q_heads: expected an integer, got float"),
    "heads a flag": ({"num_kv_heads": True}, T, "num_kv_heads: expected an integer, got bool"),
    "head dim None": ({"head_dim": None}, T, "head_dim: expected an integer, got NoneType"),
    "page size text": ({"page_size": "16"}, T, "page_size: expected an integer, got str"),
    "max tokens negative": ({"max_tokens": -1}, V, "max_tokens: expected an integer of at least 0, got -1"),
    "dtype text": ({"dtype": "bf16"}, T, "dtype: expected bfloat16"),
    "backend a number": ({"backend": 3}, T, "backend: expected a name or None, got int"),
    "layout": ({"layout": "XYZ"}, V, "layout: expected"),
    "window": ({"window": (0,)}, V, "window: expected"),
    "cu int64": ({"cu_seqlens_q": torch.tensor([0, 1])}, T, "cu_seqlens_q: expected torch.int32"),
    "cu too long": ({"cu_seqlens_q": torch.zeros(3).int()}, V, "cu_seqlens_q: expected"),
    "falling": ({"cu_seqlens_q": torch.tensor([0, -3]).int()}, V, "cu_seqlens_q: expected"),
    "negative": ({"seq_lens": torch.tensor([-3]).int()}, V, "seq_lens: expected"),
    "splits": ({"num_splits": -3}, V, r"num_splits: expected None or 0 \(planned\), or an integer up to 1024, got -3"),
    "splits huge": ({"num_splits": 1025}, V, "num_splits: expected .* up to 1024, got 1025"),
}


@pytest.mark.parametrize("name", PLAN)
def test_plan_refuses(name, backend):
    change, error, message = PLAN[name]
    arguments = {"cu_seqlens_q": torch.tensor([0, 1]).int(), "seq_lens": torch.tensor([7]).int(), **PLAN_FACTS}
    with pytest.raises(error, match=message):
        chunkattn.plan(**{"backend": backend, **arguments, **change})


def test_no_splits_is_planned_everywhere(backend):
    inputs = build(CASE)
    lengths = inputs.cu_seqlens_q, inputs.seq_lens
    made = [
        chunkattn.plan(*lengths, **{**PLAN_FACTS, "dtype": CASE.dtype}, num_splits=splits, backend=backend)
        for splits in (None, 0)
    ]
    assert torch.equal(made[0].words, made[1].words)
    outs = [
        chunkattn.attention(*inputs.batch(), num_splits=splits, plan=plan, backend=backend)
        for splits in (None, 0)
        for plan in (None, *made)
    ]
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_a_plan_of_another_backend_is_refused(backend):
    inputs = build(CASE)
    plan = chunkattn.plan(inputs.cu_seqlens_q, inputs.seq_lens, **{**PLAN_FACTS, "dtype": CASE.dtype}, backend=backend)
    other = "cpu" if backend == "reference" else "reference"
    with pytest.raises(ValueError, match=f"backend: expected '{backend}'"):
        chunkattn.attention(*inputs.batch(), plan=plan, backend=other)

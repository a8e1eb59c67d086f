"""torch.compile: whole graph, dynamic token counts without recompiling, the cache written in place (d29)."""

from __future__ import annotations

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode

import chunkattn
from chunkattn.testing import assert_bitwise_equal, assert_state_close, attention_oracle

PAGES, PAGE, HKV, HQ, D = 16, 16, 2, 4, 64


def step(q, k, v, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens):
    """A layer's worth of work around the two ops: append, attend, and arithmetic for the compiler to fuse."""
    chunkattn.append_kv(k, v, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens)
    out, lse = chunkattn.attention(q * 2.0, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens, return_lse=True)
    return out + 1.0, lse


def step_arguments(tokens: int, history: int = 5):
    generator = torch.Generator().manual_seed(tokens)
    q = torch.randn(tokens, HQ, D, generator=generator)
    k, v = torch.randn(2, tokens, HKV, D, generator=generator)
    pools = torch.randn(2, PAGES, PAGE, HKV, D, generator=generator)
    table = torch.randperm(PAGES, generator=generator).int()[None, :8]
    lengths = torch.tensor([tokens]).int()
    return q, k, v, pools[0].clone(), pools[1].clone(), table, torch.tensor([0, tokens]).int(), lengths + history


class GraphCounter:
    """A compiler that runs graphs as they are and counts them."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, examples):
        self.graphs.append(graph)
        return graph.forward


def check_steps(compiled) -> None:
    for tokens in (7, 8, 16, 33, 1, 64, 2):
        arguments, eager = step_arguments(tokens), step_arguments(tokens)
        state = compiled(*arguments)
        expected = step(*eager)
        assert_bitwise_equal(arguments[3], eager[3], name="k_cache", context=f"{tokens} tokens: ")
        assert_bitwise_equal(arguments[4], eager[4], name="v_cache", context=f"{tokens} tokens: ")
        assert_state_close((state[0] - 1.0, state[1]), (expected[0].double() - 1.0, expected[1].double()), budget=1e-5)
        q, _, _, k_cache, v_cache, *batch = arguments
        assert_state_close((state[0] - 1.0, state[1]), attention_oracle(q * 2.0, k_cache, v_cache, *batch), budget=1e-5)


def test_whole_graph_with_at_most_two_graphs_over_token_counts():
    torch._dynamo.reset()
    counter = GraphCounter()
    check_steps(torch.compile(step, backend=counter, fullgraph=True, dynamic=True))
    assert 1 <= len(counter.graphs) <= 2  # one, and one for a single token
    for graph in counter.graphs:
        targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        called = [target for target in targets if target.startswith("chunkattn.")]
        assert called == ["chunkattn.append_kv.default", "chunkattn.attention.default"]
        assert not any("clone" in target or "copy" in target for target in targets)


def test_functionalised_graph_gives_the_same():
    torch._dynamo.reset()
    check_steps(torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=True))


def test_automatic_dynamic_shapes_need_at_most_two_graphs():
    torch._dynamo.reset()
    counter = GraphCounter()
    compiled = torch.compile(step, backend=counter, fullgraph=True)
    for tokens in (7, 8, 16, 33, 64, 2):
        compiled(*step_arguments(tokens))
    assert len(counter.graphs) <= 2


@pytest.mark.full
def test_inductor_writes_the_cache_in_place():
    """The generated program hands its own inputs to append_kv and attention, and makes no copy of them."""
    torch._dynamo.reset()
    with inductor_config.patch(fx_graph_cache=False):
        compiled = torch.compile(step, fullgraph=True, dynamic=True)
        arguments, eager = step_arguments(7), step_arguments(7)
        state, programs = run_and_get_code(compiled, *arguments)
        expected = step(*eager)
        check_steps(compiled)
    assert_bitwise_equal(arguments[3], eager[3], name="k_cache")
    assert torch.allclose(state[0], expected[0], rtol=1e-5, atol=1e-5)
    (program,) = programs
    lines = program.splitlines()
    (append,) = (line for line in lines if "chunkattn.append_kv" in line and "Source Nodes" not in line)
    (attend,) = (line for line in lines if "chunkattn.attention" in line and "Source Nodes" not in line)
    pools = append.split("(", 1)[1].split(", ")[2:4]
    assert all(pool.startswith("arg") for pool in pools)
    assert attend.split("(", 1)[1].split(", ")[1:3] == pools
    made = [line for line in lines if "= empty_strided_cpu(" in line]
    assert len(made) == 3  # q * 2, out, lse
    assert "copy_(" not in program


def test_every_public_operator_traces():
    def everything(cache, block, pages, out_a, lse_a, out_b, lse_b):
        chunkattn.copy_pages(cache, pages, pages + 2)
        chunkattn.scatter_pages(block, cache, pages)
        merged, lse = chunkattn.merge_states(out_a, lse_a, out_b, lse_b)
        return chunkattn.gather_pages(cache, pages), merged * 2, lse

    torch._dynamo.reset()
    a = torch.randn(4, 8), torch.randn(2, 8), torch.tensor([0, 1]), torch.randn(3, 2, 8), torch.randn(3, 2)
    arguments = (*a, torch.randn(3, 2, 8), torch.randn(3, 2))
    cache, eager_cache = a[0].clone(), a[0].clone()
    got = torch.compile(everything, backend="aot_eager", fullgraph=True)(cache, *arguments[1:])
    expected = everything(eager_cache, *arguments[1:])
    for x, y in zip((cache, *got), (eager_cache, *expected), strict=True):
        assert_bitwise_equal(x, y)


def test_an_unchanged_token_count_of_another_batch_does_not_recompile():
    torch._dynamo.reset()
    counter = GraphCounter()
    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=True)
    for history in (5, 60, 0, 17):
        compiled(*step_arguments(16, history))
    assert len(counter.graphs) == 1


def test_a_plan_of_fake_lengths_needs_maxima():
    """The cpu backend reads its workspace off the plan, and a fake plan holds nothing."""
    facts = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "page_size": 16, "dtype": torch.bfloat16}
    with FakeTensorMode():
        batch = chunkattn.Batch.from_lists([5, 1], [5, 20], [[3], [6, 1]])
        lengths = batch.cu_seqlens_q, batch.seq_lens
        with pytest.raises(ValueError, match=r"^max_tokens, max_seq_len: expected numbers, .* got None"):
            chunkattn.plan(*lengths, **facts, backend="cpu")
        plan = chunkattn.plan(*lengths, **facts, max_tokens=6, max_seq_len=32, num_splits=3, backend="cpu")
        q = torch.zeros(6, 4, 64, dtype=torch.bfloat16)
        kv = chunkattn.PagedKV.allocate(8, 16, 2, 64)
        assert chunkattn.attention(q, kv.k_cache, kv.v_cache, batch.block_table, *lengths, plan=plan).shape == q.shape
    spec = chunkattn.AttentionSpec("cpu", torch.bfloat16, torch.bfloat16, 4, 2, 64, 64, 16)
    assert plan.workspace_bytes == chunkattn.workspace_bytes(spec, max_tokens=6, max_seq_len=32, num_splits=3)
    assert plan.workspace_bytes > 0

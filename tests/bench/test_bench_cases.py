"""Cases, presets, mixes, work and floors: numbers that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chunkattn.bench import cases, mixes, models, work
from chunkattn.bench.case import BenchCase, Heads


def test_every_suite_expands_to_cases_with_keys_of_their_own() -> None:
    assert {"cpu", "gpu", "grid", "scaling", "quick", "ragged", "heads", "traces", "kv_dtype"} <= set(cases.names())
    for name in cases.names():
        suite = cases.load(name)
        keys = [case.key for case in suite.cases]
        assert len(set(keys)) == len(keys) > 0, name
        assert suite.about


def test_the_cpu_suite_is_w1_to_w4_twice_two() -> None:
    found = {case.key: case for case in cases.load("cpu").cases}
    assert len(found) == 16
    mixed = found["cpu/W4/fp32/nhd128"]
    assert mixed.q_lens == (512, *[1] * 15)
    assert mixed.kv_lens == (2560, *[1024] * 15)
    assert (mixed.kv_dtype, mixed.page_size, mixed.heads.num_q_heads) == ("fp32", 128, 32)


def test_the_quantised_suite_keeps_the_query_dtype() -> None:
    assert {(case.dtype, case.kv_dtype) for case in cases.load("kv_dtype").cases} == {
        ("bf16", kv) for kv in ("bf16", "fp8_e4m3", "fp8_e5m2", "int8")
    }


def test_grids_fill_letters_into_names_groups_and_axes() -> None:
    grid = {case.name: case for case in cases.load("grid").cases}
    assert grid["chunk256@1024"].requests == ((1, 256, 1024),)
    assert dict(grid["chunk256@1024"].axes) == {"chunk": 256, "history": 1024}
    scaling = {case.name: case for case in cases.load("scaling").cases}
    assert scaling["decode-history4096"].requests == ((8, 1, 4095),)
    heads = scaling["chunk-kv-heads2"].heads
    assert (heads.num_q_heads, heads.num_kv_heads) == (8, 2)


def test_models_with_two_kinds_of_layers_give_two_cases() -> None:
    found = {case.name: case.heads for case in cases.load("heads").cases}
    assert found["mixed256@1024+8@1024/gpt-oss-20b#1"].window == (127, -1)
    assert found["mixed256@1024+8@1024/gpt-oss-20b#2"].window == (-1, -1)
    assert found["mixed256@1024+8@1024/deepseek-mha-tp8"].head_dim_v == 128
    assert sum(kind.count for kind in models.layers("gemma-3-12b")) == 48


def test_a_users_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("cases: {one: [[2, 3, 4]]}\nheads: smollm2-135m\npage_sizes: [24]\n")
    (case,) = cases.load(str(file)).cases
    assert case.key == "mine/one/bf16/nhd24"
    assert case.kv_lens == (7, 7)
    assert case.attention_case().num_kv_heads == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cases: {one: [[2, 3]]}", "expected \\[count, q_len, history\\]"),
        ("cases: {one: [[2, 3, -4]]}", "numbers >= 0"),
        ("cases: {one: [[2, 3, 4]]}\nheads: gpt-9", "model: expected one of llama-3-8b"),
        ("cases: {one: [[2, 3, 4]]}\ndtypes: [fp4]", "dtype: expected one of bf16"),
        ("cases: {one: [[2, 3, 1.5]]}", "numbers >= 0"),
        ("cases: {one: [[2, 0, 0]]}", "requests: expected at least one token in 'one', got none"),
        ("cases: {one: [[2, 3, 4]]}\npage_sizes: [0]", "page_size: expected numbers from 1 .* got 0"),
        ("cases: {one: [[2, 3, 4]]}\npage_sizes: [x]", "page_size: expected integers, got 'x'"),
        ("cases: {one: [[2, 3, 4]]}\nlayouts: [xyz]", "layout: expected 'nhd' or 'hnd', got 'xyz'"),
        ("about: nothing", "expected .* to hold cases or grids"),
        ("cases: {one: 3}", "cases: expected .*bad.yaml to be built like .*, got TypeError"),
        ("cases: [1, 2]", "cases: expected .*bad.yaml to be built like .*, got AttributeError"),
        ("grids: [{over: {n: [1]}}]", "cases: expected .*bad.yaml to be built like .*, got KeyError 'requests'"),
        ("grids: [{name: x, over: {n: [1]}, requests: [[n, 1, 1]], heads: {few: 1}}]", "built like .* 'few'"),
        ("cases: [", "cases: expected YAML in .*bad.yaml, got while parsing .* line 1"),
        ("\udcff\udcfe", "cases: expected YAML in .*bad.yaml, got "),
    ],
)
def test_a_bad_file_gets_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=message) as caught:
        cases.load(str(file))
    assert "\n" not in str(caught.value)


def test_an_unknown_suite_lists_the_known() -> None:
    with pytest.raises(ValueError, match="cases: expected a YAML file or one of cpu"):
        cases.load("nope")


def test_work_of_a_mixed_batch_by_hand() -> None:
    heads = Heads(num_q_heads=4, num_kv_heads=2, head_dim=8, head_dim_v=16)
    counts = work.count(BenchCase("s", "c", ((1, 4, 6), (2, 1, 9)), heads, page_size=4))
    pairs = 34 + 10 + 10
    assert counts.flops == 2 * 4 * 24 * pairs
    assert counts.exps == 4 * pairs
    assert counts.kv_bytes == 30 * 2 * 24 * 2
    assert counts.bytes == counts.kv_bytes + 6 * 4 * 24 * 2 + 4 * (3 + 3 + 3)


def test_window_and_kv_dtype_reduce_the_work() -> None:
    narrow = Heads(num_q_heads=2, num_kv_heads=1, head_dim=8, head_dim_v=8, window=(1, -1))
    counts = work.count(BenchCase("s", "c", ((1, 1, 99),), narrow, kv_dtype="int8"))
    assert counts.flops == 2 * 2 * 16 * 2
    assert counts.kv_bytes == 2 * 16


@pytest.mark.parametrize(
    ("name", "compute_us", "memory_us"),
    [("W1", 89.7, 10.3), ("W3", 5.4, 250.0), ("W4", 95.1, 260.2), ("W7", 375.2, 142.5), ("W10", 5.4, 245.9)],
)
def test_floors_of_an_h200_are_those_of_the_formula(name: str, compute_us: float, memory_us: float) -> None:
    case = next(c for c in cases.load("gpu").cases if c.name == name and c.page_size == 16)
    counts = work.count(case)
    floor = work.floor(counts, flops_per_s=790e12, bytes_per_s=4.3e12)
    assert floor.compute_s * 1e6 == pytest.approx(compute_us, abs=0.06)
    lse_bytes = 4 * sum(case.q_lens) * case.heads.num_q_heads  # the published floors count the lse
    assert (floor.memory_s + lse_bytes / 4.3e12) * 1e6 == pytest.approx(memory_us, abs=0.06)
    assert floor.overlap_s == max(floor.compute_s, floor.memory_s)
    assert floor.bound == ("compute" if compute_us > memory_us else "memory")


def test_sets_differ_in_data_and_pages_but_not_in_the_problem() -> None:
    case = BenchCase("s", "c", ((1, 5, 30),), Heads(2, 1, 16, 16))
    from chunkattn.testing import build

    first, second = (build(case.attention_case(set_index=i), page_seed=i) for i in range(2))
    assert first.q.shape == second.q.shape
    assert not torch.equal(first.q, second.q)
    assert not torch.equal(first.block_table, second.block_table)


TRACE = [mixes.Lengths(1000, 10), mixes.Lengths(30, 500)]


def test_mixes_fill_the_budget_and_stay_inside_the_requests() -> None:
    for groups in mixes.sample(TRACE, number=200, running=9, budget=64, seed=3):
        (_, q_len, history), *decodes = groups
        assert len(decodes) == 8
        assert q_len + len(decodes) <= 64
        assert history + q_len in (30, 1000) or q_len + len(decodes) == 64
        assert all(count == 1 and q == 1 for count, q, _ in decodes)
        assert all(30 <= kv < 530 or 1000 <= kv < 1010 for _, _, kv in decodes)


def test_mixes_meet_requests_in_proportion_to_their_steps() -> None:
    drawn = mixes.sample(TRACE, number=400, running=9, budget=64, seed=5)
    short = sum(kv < 530 for groups in drawn for _, _, kv in groups[1:])
    assert short / (400 * 8) == pytest.approx(500 / 510, abs=0.01)
    long_prefill = sum(groups[0][1] + groups[0][2] > 30 for groups in drawn)
    assert long_prefill / 400 == pytest.approx(16 / 17, abs=0.04)


def test_traces_of_both_kinds_are_read_and_written_back_as_cases(tmp_path: Path) -> None:
    table, lines = tmp_path / "a.csv", tmp_path / "b.jsonl"
    table.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nx,10,3\nx,20,0\n")
    lines.write_text('{"input_length": 7, "output_length": 2}\n')
    assert mixes.read_trace(table) == [mixes.Lengths(10, 3)]
    assert mixes.read_trace(lines) == [mixes.Lengths(7, 2)]
    (tmp_path / "mine.yaml").write_text(mixes.to_yaml("t", {"m0": [[1, 3, 4], [1, 1, 9]]}))
    (case,) = cases.load(str(tmp_path / "mine.yaml")).cases
    assert case.kv_lens == (7, 10)


def test_a_trace_without_lengths_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match="expected a column of ContextTokens"):
        mixes.read_trace(file)
    for text in ("many", "inf", "nan", ""):
        file.write_text(f"ContextTokens,GeneratedTokens\n1,2\n{text},3\n")
        with pytest.raises(
            ValueError, match=r"trace: expected ContextTokens and GeneratedTokens in request 2 of .*a\.csv"
        ):
            mixes.read_trace(file)
    (tmp_path / "a.jsonl").write_text('{"input_length": 7\n')
    with pytest.raises(ValueError, match=r"trace: expected CSV or JSON lines .*a\.jsonl"):
        mixes.read_trace(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="running: expected 1 to the budget"):
        mixes.sample(TRACE, number=1, running=9, budget=8)

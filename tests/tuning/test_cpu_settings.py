"""Settings of the cpu backend: what they change, what they must not, and where measured ones come from."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import timeit
from pathlib import Path
from typing import Any

import pytest
import torch

import chunkattn
from chunkattn import AttentionSpec
from chunkattn.backends import load
from chunkattn.planning.tuning_table import TuningEntry, TuningTable
from chunkattn.testing import (
    BATCHES,
    AttentionCase,
    AttentionInputs,
    assert_bitwise_equal,
    assert_rows_close,
    assert_state_close,
    build,
)

cpu: Any = load("cpu")
SPEC = AttentionSpec("cpu", torch.bfloat16, torch.bfloat16, 8, 2, 64, 64, 16)
if not cpu.supports(SPEC):
    pytest.skip("the native core is not built", allow_module_level=True)

from chunkattn import _native  # noqa: E402

EXTREMES = [
    {"threads": 1},
    {"decode_rows": 1},
    {"decode_rows": 16},
    {"items_per_worker": 64, "min_split": 128},
    {"tile_kib": 16, "tile_share": 256},
    {"tile_kib": 1 << 14, "tile_share": 1, "items_per_worker": 1, "min_split": 1 << 20},
]


def inputs_of(name: str, **options: Any) -> AttentionInputs:
    q_lens, kv_lens = BATCHES[name]
    return build(AttentionCase(name, q_lens, kv_lens, num_q_heads=8, num_kv_heads=2, head_dim=64, **options))


def call(inputs: AttentionInputs, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out: Any = chunkattn.attention(*inputs.batch(), **{**inputs.options(), **options}, return_lse=True, backend="cpu")
    return out


@pytest.mark.parametrize("values", EXTREMES, ids=str)
@pytest.mark.parametrize("name", list(BATCHES))
def test_any_setting_answers_right(name: str, values: dict[str, int]) -> None:
    inputs = inputs_of(name)
    with cpu.with_settings(values):
        assert_state_close(call(inputs), inputs.expected())


@pytest.mark.parametrize("values", EXTREMES, ids=str)
def test_invariant_bits_do_not_depend_on_settings(values: dict[str, int]) -> None:
    q_lens, kv_lens = (1, 5, 70), (5000, 2100, 2300)
    case = AttentionCase("long", q_lens, kv_lens, num_q_heads=8, num_kv_heads=2, head_dim=64, invariant=True)
    inputs = build(case)
    before = call(inputs)
    with cpu.with_settings(values):
        for one, other in zip(call(inputs), before):
            assert_bitwise_equal(one, other)


def test_settings_reach_the_plan_and_plans_outlive_them() -> None:
    inputs = inputs_of(next(iter(BATCHES)))
    facts = {"num_q_heads": 8, "num_kv_heads": 2, "head_dim": 64, "page_size": 16, "dtype": torch.bfloat16}
    lengths = inputs.cu_seqlens_q, inputs.seq_lens
    with cpu.with_settings({"items_per_worker": 7, "decode_rows": 3}):
        plan = chunkattn.plan(*lengths, **facts, backend="cpu")  # type: ignore[arg-type]
        spec, _ = cpu.planned(SPEC, [1], [9])
        assert (spec.items_per_worker, spec.decode_rows, spec.causal) == (7, 3, True)
    assert_state_close(call(inputs, plan=plan), inputs.expected())
    assert cpu.planned(SPEC, [1], [9])[0].items_per_worker == 4


@pytest.mark.parametrize("values", EXTREMES, ids=str)
def test_a_workspace_suffices_whatever_the_settings(values: dict[str, int]) -> None:
    """Of any mix below the maxima, whose tiles may be larger than those of the maxima."""
    with cpu.with_settings(values):
        size = chunkattn.workspace_bytes(SPEC, max_tokens=400, max_seq_len=9000, backend="cpu")
        for q_lens, kv_lens in (((1,) * 4, (9000,) * 4), ((97,), (8999,)), ((200, 1), (7000, 9000)), ((390,), (9000,))):
            spec, words = cpu.planned(SPEC, q_lens, kv_lens)
            assert cpu.plan_workspace_bytes(plan_of(words), None, None) <= size, (spec, q_lens)


def plan_of(words: list[int]) -> Any:
    class Args:
        head_dim_v = 64

    args: Any = Args()
    args.words = torch.tensor(words)
    return args


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"threads": -1}, "expected threads from 0 to 1024"),
        ({"min_split": 200}, "expected min_split from 128 to 1048576 in steps of 128, got 200"),
        ({"decode_rows": 17}, "expected decode_rows from 1 to 16"),
        ({"block": 3}, "expected the names of default_settings"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message), cpu.with_settings(values):
        pass
    assert cpu.planned(SPEC, [1], [9])[0].min_split == 256


def test_the_space_begins_with_the_default_and_is_allowed() -> None:
    space = list(cpu.settings_space(SPEC))
    assert space[0] == _native.default_settings()
    for values in space:
        assert _native.check_settings(values) == values


@pytest.mark.parametrize(
    ("q_lens", "kv_lens", "name"),
    [
        ((1, 1), (100, 50), "decode-small"),
        ((1, 0, 2), (9, 9, 9), "decode-small"),  # two tokens of four heads are eight rows
        ((3,), (9,), "prefill-small"),
        ((3, 1), (9, 9), "mixed-small"),
        ((1,) * 8, (16384,) * 8, "decode-large"),
        ((512,), (4096,), "prefill-large"),
        ((512, 1), (4096, 9), "mixed-large"),
        ((), (), "decode-small"),
        ((0,), (5,), "decode-small"),
    ],
)
def test_mix_classes(q_lens: tuple[int, ...], kv_lens: tuple[int, ...], name: str) -> None:
    assert cpu.mix_class(SPEC, q_lens, kv_lens) == name


def test_page_classes() -> None:
    assert [_native.page_class(size) for size in (1, 15, 16, 17, 100, 256, 5000)] == [1, 8, 16, 16, 64, 256, 256]


def run(code: str, tuning: str) -> str:
    import os

    environment = {**os.environ, "CHUNKATTN_TUNING": tuning, "PYTHONPATH": str(Path(chunkattn.__file__).parents[1])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tempfile.gettempdir())
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


PLANNED = """
import torch, chunkattn
from chunkattn.backends import load
torch.set_num_threads({threads})
spec = chunkattn.AttentionSpec("cpu", torch.{dtype}, torch.{dtype}, 8, 2, 64, 64, {page})
print(load("cpu").planned(spec, {q_lens}, [100])[0].items_per_worker)
"""


def planned(
    tuning: Path | str, *, threads: int = 0, dtype: str = "bfloat16", page: int = 16, q_lens: str = "[1]"
) -> str:
    threads = threads or torch.get_num_threads()
    return run(PLANNED.format(threads=threads, dtype=dtype, page=page, q_lens=q_lens), str(tuning)).strip()


def test_another_process_takes_measured_settings_where_the_key_fits(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    key = cpu.tuning_key(SPEC, "decode-small")
    TuningTable(path).save({key: TuningEntry({"items_per_worker": 9}, 1.2, 0.01, 1.0)})
    assert planned(path) == "9"
    assert planned(path, page=31) == "9"
    for other in ({"page": 32}, {"dtype": "float32"}, {"q_lens": "[3]"}, {"threads": torch.get_num_threads() + 1}):
        assert planned(path, **other) == "4", other  # type: ignore[arg-type]
    assert planned("off") == "4"


@pytest.mark.parametrize("field", ["device", "library", "kernel", "backend"])
def test_settings_of_another_device_version_or_kernel_are_not_taken(tmp_path: Path, field: str) -> None:
    path = tmp_path / "t.json"
    key = cpu.tuning_key(SPEC, "decode-small")._replace(**{field: "another, 2 threads"})
    TuningTable(path).save({key: TuningEntry({"items_per_worker": 9}, 1.2, 0.01, 1.0)})
    assert planned(path) == "4"


def test_settings_that_cannot_be_are_left_out_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    bad = TuningEntry({"min_split": 100}, 1.2, 0.01, 1.0)
    good = TuningEntry({"items_per_worker": 9}, 1.2, 0.01, 1.0)
    decode, prefill = (cpu.tuning_key(SPEC, mix) for mix in ("decode-small", "prefill-small"))
    TuningTable(path).save({decode: bad, prefill: good})
    shown = planned(path)
    assert shown.startswith("4")
    assert "a measured setting of the cpu backend is not used: values: expected min_split" in shown
    assert planned(path, q_lens="[3]").startswith("9")


@pytest.mark.parametrize(
    "change",
    [
        {"mix_class": "no such class"},
        {"page_class": "9" * 30},
        {"page_class": "sixteen"},
        {"dtype": "Tensor"},
        {"dtype": "bfloat16/__name__"},
        {"device": "9" * 30},
    ],
    ids=str,
)
def test_a_key_that_cannot_be_costs_nobody_else(tmp_path: Path, change: dict[str, str]) -> None:
    path = tmp_path / "t.json"
    decode, prefill = (cpu.tuning_key(SPEC, mix) for mix in ("decode-small", "prefill-small"))
    if "device" in change:
        before, _, unit = decode.device.rpartition(" ")
        change = {"device": f"{before.rpartition(' ')[0]} {change['device']} {unit}"}
    entry = TuningEntry({"items_per_worker": 9}, 1.2, 0.01, 1.0)
    TuningTable(path).save({decode._replace(**change): entry, prefill: entry})  # type: ignore[arg-type]
    shown = planned(path)
    assert shown.startswith("4")
    assert "a measured setting of the cpu backend is not used: " in shown
    assert planned(path, q_lens="[3]").startswith("9")


def test_a_damaged_table_serves_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("{")
    assert planned(path).startswith("4")


def test_lookup_costs_less_than_a_microsecond() -> None:
    """A plan made in the native core with a table of 600 entries and with none."""
    starts, lens = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([100], dtype=torch.int32)
    words = torch.empty(cpu.plan_words(1), dtype=torch.int64)
    args = chunkattn.args.PlanArgs(
        starts, lens, words, 8, 2, 64, 64, 16, torch.bfloat16, True, -1, -1, False, 0, "NHD", None
    )
    threads, bf16 = torch.get_num_threads(), torch.bfloat16
    mixes = ("decode-small", "decode-large", "prefill-small", "prefill-large", "mixed-small", "mixed-large")
    values = {"items_per_worker": 9}
    rows = [(threads, bf16, 64, 64, g, bf16, 16, mix, values) for g in range(1, 101) for mix in mixes]

    def best() -> float:
        return min(timeit.repeat(lambda: _native.plan(args, threads), number=1000, repeat=60)) / 1000

    try:
        without = best()
        _native.install_settings(rows)
        with_table = best()
        _native.plan(args, threads)
        assert 9 in words.tolist()
    finally:
        _native.install_settings([])
    assert with_table - without <= 1e-6


def test_compiled_calls_take_what_is_in_force() -> None:
    """No guard on settings: a compiled graph calls the op, which looks them up."""
    inputs = inputs_of(next(iter(BATCHES)))
    compiled = torch.compile(lambda *batch: chunkattn.attention(*batch, backend="cpu"), backend="eager", fullgraph=True)
    counter = torch._dynamo.utils.counters
    compiled(*inputs.batch())
    frames = dict(counter["stats"])
    for values in EXTREMES:
        with cpu.with_settings(values):
            out = compiled(*inputs.batch())
            assert_rows_close(out, inputs.expected()[0])
    assert dict(counter["stats"]) == frames


SHIPPED_IS = """
import pathlib
from chunkattn.planning import measured
measured.SHIPPED = pathlib.Path({shipped!r})
"""


def test_the_shipped_table_is_looked_up_after_the_users(tmp_path: Path) -> None:
    shipped, own = tmp_path / "shipped.json", tmp_path / "own.json"
    decode, prefill = (cpu.tuning_key(SPEC, mix) for mix in ("decode-small", "prefill-small"))
    nine, seven = (TuningEntry({"items_per_worker": n}, 1.2, 0.01, 1.0) for n in (9, 7))
    TuningTable(shipped).save({decode: nine, prefill: nine})
    TuningTable(own).save({decode: seven})

    def taken(q_lens: str, tuning: Path | str) -> str:
        code = PLANNED.format(threads=torch.get_num_threads(), dtype="bfloat16", page=16, q_lens=q_lens)
        return run(SHIPPED_IS.format(shipped=str(shipped)) + code, str(tuning)).strip()

    assert [taken("[1]", own), taken("[3]", own)] == ["7", "9"]
    assert taken("[1]", tmp_path / "none.json") == "9"
    assert taken("[1]", "off") == "4"


def test_the_package_comes_with_a_table_that_can_be_read() -> None:
    import warnings

    from chunkattn.planning.measured import SHIPPED

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for key in TuningTable(SHIPPED):
            assert key.library == chunkattn.__version__
    assert SHIPPED.exists()

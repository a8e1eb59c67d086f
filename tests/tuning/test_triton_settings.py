"""Settings of the Triton backend, on GPUs that are not at hand: what is listed, forced, found in a table, compiled."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from chunkattn import AttentionSpec
from chunkattn.backends.device import Gpu, stand_in
from chunkattn.backends.triton import config, settings
from chunkattn.bench.case import BenchCase, Heads
from chunkattn.cli.commands import cli
from chunkattn.planning import measured
from chunkattn.planning.tuning_table import TuningEntry, TuningTable
from chunkattn.tuning.kernels import MOST_CANDIDATES, jobs
from chunkattn.tuning.problem import MIXES

SPEC = AttentionSpec("cuda", torch.bfloat16, torch.bfloat16, 32, 8, 128, 128, 16)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(params=[80, 86, 90, 100])
def device(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    found = Gpu.of_arch(request.param, 108)
    with stand_in("cuda", found):
        yield found


def chosen(device: Gpu, *, invariant: bool = False, group: int = 4, page_size: int = 16) -> config.KernelConfig:
    return config.choose(128, 128, torch.bfloat16, invariant, device, group, page_size)


def test_the_space_begins_with_the_default_and_all_of_it_fits(device: Gpu) -> None:
    space = list(settings.settings_space(SPEC))
    assert space[0] == settings.to_values(chosen(device))
    assert len({tuple(values.values()) for values in space}) == len(space)
    for values in space:
        one = settings.from_values(values, 128, 128, torch.bfloat16, device)
        assert settings.to_values(one) == values
        assert config.shared_bytes(one, 128, 128, 2) <= device.shared_bytes


@pytest.mark.parametrize(
    "change", [{"block_m": 256}, {"num_warps": 3}, {"num_stages": 9}, {"items_per_worker": 0}, {"tile": 1}], ids=str
)
def test_what_does_not_fit_is_refused(device: Gpu, change: dict[str, int]) -> None:
    values = {**settings.to_values(chosen(device)), **change}
    with pytest.raises(ValueError, match="values: expected"):
        settings.from_values(values, 128, 128, torch.bfloat16, device)


def test_forced_settings_reach_launch_and_plan_alike_and_leave_invariant_calls_alone(device: Gpu) -> None:
    before = chosen(device), chosen(device, invariant=True)
    values = {**list(settings.settings_space(SPEC))[3], "items_per_worker": 5, "split_cost": 77}
    with settings.with_settings(values):
        assert settings.to_values(chosen(device)) == values
        assert chosen(device, invariant=True) == before[1]
        work, words = settings.planned(SPEC, [40, 1], [90, 500])
        assert (work.tile_rows, work.kv_tile) == (values["block_m"], values["block_n"])
        assert (work.items_per_worker, work.split_cost) == (5, 77)
        assert work.num_workers == device.num_sms * values["ctas_per_sm"]
        assert words[8 : 8 + 3] == [32, 8, 1]
    assert (chosen(device), chosen(device, invariant=True)) == before


def test_a_table_decides_where_its_key_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Gpu.of_arch(90, 132)
    with stand_in("cuda", device):
        key, space = settings.tuning_key(SPEC), list(settings.settings_space(SPEC))
    TuningTable(tmp_path / "t.json").save({key: TuningEntry(space[4], 1.2, 0.01, 5.0)})
    monkeypatch.setattr(measured, "user_table", lambda: tmp_path / "t.json")
    measured.in_force.cache_clear()
    config._chosen.cache_clear()
    try:
        assert settings.to_values(chosen(device)) == space[4]
        assert settings.to_values(chosen(device, page_size=31)) == space[4]
        assert settings.to_values(chosen(device, page_size=32)) == space[0]
        assert settings.to_values(chosen(device, group=8)) == space[0]
        assert settings.to_values(chosen(Gpu.of_arch(90, 78))) == space[0]
        assert chosen(device, invariant=True).block_m_decode == chosen(device, invariant=True).block_m
        unfit = TuningEntry({**space[4], "block_m": 512}, 1.2, 0.01, 6.0)
        TuningTable(tmp_path / "t.json").save({key: unfit})
        measured.in_force.cache_clear()
        config._chosen.cache_clear()
        with pytest.warns(UserWarning, match="triton backend is not used: values: expected a configuration that fits"):
            assert settings.to_values(chosen(device)) == space[0]
    finally:
        monkeypatch.undo()
        measured.in_force.cache_clear()
        config._chosen.cache_clear()


def test_an_entry_is_void_when_attention_changes_and_not_else(tmp_path: Path) -> None:
    folder = Path(settings.__file__).parent
    kept = [path for path in sorted(folder.glob("*.py")) if path.stem not in settings.OTHERS]
    assert {path.stem for path in kept} >= {"attention", "tile", "softmax", "plan", "config", "launch", "merge_splits"}
    for path in kept:  # none of them reaches a file that is left out, but for the look at the tables
        found = re.findall(r"chunkattn\.backends\.triton(?:\.| import )(\w+)", path.read_text())
        assert not {*found} & {*settings.OTHERS} - {"settings"}, path.name
    before = settings.kernel_hash()
    for number, name in enumerate(("append_kv", "pages", "tile", "plan")):
        copy = Path(shutil.copytree(folder, tmp_path / str(number)))
        assert settings.kernel_hash(copy) == before
        with (copy / f"{name}.py").open("a") as file:
            file.write("# changed\n")
        settings.kernel_hash.cache_clear()
        assert (settings.kernel_hash(copy) != before) == (name in ("tile", "plan"))


@needs_triton
def test_one_job_serves_all_mixes(device: Gpu) -> None:
    from chunkattn.backends.triton import backend

    cases = [BenchCase("tune", name, groups, Heads()) for name, groups in MIXES.items()]
    (job,) = jobs(backend, cases, "cuda")
    assert job.key.mix_class == "any"
    assert len(job.cases) == len(MIXES)
    assert 1 < len(job.settings) <= MOST_CANDIDATES
    assert len({settings.kernel_of(values) for values in job.settings}) > 3


def run(*arguments: str) -> Any:
    small = ("--q-heads", "4", "--kv-heads", "2", "--head-dim", "64", "--mix", "2x1+500", "--mix", "1x64+100,2x1+99")
    return CliRunner().invoke(cli, ["tune", "kernels", "--backend", "triton", *small, *arguments])


@needs_triton
def test_the_command_lists_without_a_gpu(tmp_path: Path) -> None:
    result = run("--arch", "90", "--table", str(tmp_path / "t.json"), "--json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["keys"]
    assert row["state"] == "to be measured"
    assert row["settings"][0] == row["default"]
    assert row["key"]["device"].startswith("sm_90")
    assert not (tmp_path / "t.json").exists()


@needs_triton
def test_the_command_compiles_without_a_gpu(tmp_path: Path) -> None:
    """One kernel here; the others are left when the time is up."""
    table = str(tmp_path / "t.json")
    result = run("--arch", "80", "--compile", "--budget-seconds", "0.1", "--table", table, "--json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["keys"]
    default, *others = row["compiled"]
    assert 32 < default["figures"]["registers"] <= 255
    assert 0 < default["figures"]["shared_bytes"] <= 166_912
    assert all(one["figures"] is None and not one["refused"] for one in others)


class Compiler:
    """A backend whose kernels become what a list says."""

    def __init__(self, figures: list[Any]) -> None:
        self._figures, self._at = figures, 0

    def with_settings(self, values: dict[str, int]) -> Any:
        import contextlib

        self._at = values["n"]
        return contextlib.nullcontext()

    def kernel_of(self, values: dict[str, int]) -> int:
        return values["n"]

    def compiled(self, args: Any, device: Gpu) -> Any:
        from dataclasses import make_dataclass

        found = self._figures[self._at]
        if isinstance(found, str):
            raise RuntimeError(found)
        return make_dataclass("F", ["registers", "spill_bytes", "shared_bytes"])(*found)


def test_kernels_that_cannot_be_good_are_left_out() -> None:
    from chunkattn.tuning.kernels import Job
    from chunkattn.tuning.static import compile_job

    device = Gpu.of_arch(80, 108)
    figures = [(200, 16, 1000), (255, 17, 1000), (100, 0, 200_000), "no such instruction", (255, 16, 2000)]
    with stand_in("cuda", device):
        key = settings.tuning_key(SPEC)
    case = BenchCase("tune", "x", ((1, 4, 4),), Heads(4, 2, 16, 16))
    job = Job(key, Compiler(figures), (case,), tuple({"n": n} for n in range(5)), 5, 5)
    kept, results = compile_job(job, device)
    assert [values["n"] for values in kept.settings] == [0, 4]
    assert [one.refused.split(" ")[0] for one in results] == ["", "spills", "needs", "no", ""]

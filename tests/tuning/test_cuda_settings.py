"""Settings of the CUDA backend, on GPUs that are not at hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from chunkattn import AttentionSpec
from chunkattn.backends.cuda import backend, libraries, select, settings
from chunkattn.backends.device import Gpu, stand_in
from chunkattn.build import builder, sources, store
from chunkattn.build.sources import source_root
from chunkattn.build.variants import Variant, all_variants
from chunkattn.cli.commands import cli
from chunkattn.planning import measured
from chunkattn.planning.tuning_table import TuningEntry, TuningTable

SPEC = AttentionSpec("cuda", torch.bfloat16, torch.bfloat16, 32, 8, 128, 128, 16)
if not all_variants():
    pytest.skip("the package came without kernel sources", allow_module_level=True)


@pytest.fixture(params=[80, 90])
def device(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    found = Gpu.of_arch(request.param, 100)
    with stand_in("cuda", found):
        yield found


def test_the_space_begins_with_what_the_backend_would_take(device: Gpu) -> None:
    space = list(settings.settings_space(SPEC))
    best = select.candidates(SPEC, device)[0][0]
    assert space[0] == {"arch": int(best.arch.rstrip("a")), "items_per_worker": 8, "split_cost": 128}
    assert len({tuple(values.values()) for values in space}) == len(space) >= 9


def test_forced_settings_reach_the_plan_but_not_invariant_ones(device: Gpu) -> None:
    before = settings.planned(SPEC, [40, 1], [90, 500])
    values = {**next(iter(settings.settings_space(SPEC))), "items_per_worker": 5, "split_cost": 77}
    with settings.with_settings(values):
        work, _ = settings.planned(SPEC, [40, 1], [90, 500])
        assert (work.items_per_worker, work.split_cost) == (5, 77)
        assert settings.in_force(SPEC._replace(invariant=True), device) is None
    assert settings.planned(SPEC, [40, 1], [90, 500]) == before


def test_a_choice_of_kernel_puts_its_variants_first() -> None:
    device = Gpu.of_arch(90, 100)
    best, _ = settings.candidates(SPEC, device, None)
    assert {v.arch for v in best} == {"80", "90a"}
    other, _ = settings.candidates(SPEC, device, settings.Settings(80))
    assert other == (*(v for v in best if v.arch == "80"), *(v for v in best if v.arch == "90a"))
    assert settings.candidates(SPEC, device, settings.Settings(70))[0] == best


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of what is loaded, in order; every variant can be, save those that another fixture or a test takes out."""
    names: list[str] = []

    def load(variants: tuple[Variant, ...]) -> libraries.Loaded:
        found = libraries.available(variants)
        if isinstance(found, str):
            raise libraries.LibraryError(found)
        names.append(found[0].name)
        return libraries.Loaded(found[0], 0, None, "cache")  # type: ignore[arg-type]

    monkeypatch.setattr(libraries, "native", lambda: libraries)  # nothing is called
    monkeypatch.setattr(libraries, "load", load)
    monkeypatch.setattr(libraries, "_loaded", {})
    monkeypatch.setattr(libraries, "_failed", {})
    monkeypatch.setattr(store, "find", lambda variant: None)
    monkeypatch.setattr(builder, "unbuildable_reason", lambda variant: None)
    monkeypatch.setattr(backend, "_of_kernel", lambda kernel, device: None)
    backend._of_choice.cache_clear()
    yield names
    backend._of_choice.cache_clear()


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("buildable", [True, False])
def test_what_is_explained_is_prepared_and_called(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch, arch: int, buildable: bool
) -> None:
    """With a measured kernel; where that one cannot be built, the other one, all the same in every place."""
    device = Gpu.of_arch(90, 100)
    suffix = {80: "sm80", 90: "sm90a"}[arch if buildable else 170 - arch]
    if not buildable:
        missing = {80: "80", 90: "90a"}[arch]
        monkeypatch.setattr(builder, "unbuildable_reason", lambda v: "it is old" if v.arch == missing else None)
    monkeypatch.setattr(settings, "_measured", lambda spec, device: settings.Settings(arch))
    with stand_in("cuda", device):
        assert backend.supports(SPEC)
        named = backend.describe(SPEC).split(" ")[0]
        assert named.startswith("attention_")
        assert named.endswith(suffix)
        assert backend.prepare(SPEC)
        called = backend._of_problem(SPEC, (-1, -1), 0, device)
        assert [name for name in loaded if name.startswith("attention_")] == [named, called.library.variant.name]
        assert named == called.library.variant.name


@pytest.mark.parametrize(
    ("values", "taken"),
    [
        ({"arch": 80, "items_per_worker": 4, "split_cost": 32}, True),
        ({"arch": 80, "items_per_worker": 4, "split_cost": 0}, False),
        ({"arch": 80, "items_per_worker": 400, "split_cost": 32}, False),
        ({"arch": 75, "items_per_worker": 4, "split_cost": 32}, False),
        ({"tile": 80}, False),
    ],
    ids=str,
)
def test_a_table_decides_where_its_entry_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, int], taken: bool
) -> None:
    device = Gpu.of_arch(80, 108)
    with stand_in("cuda", device):
        key = settings.tuning_key(SPEC)
    TuningTable(tmp_path / "t.json").save({key: TuningEntry(values, 1.2, 0.01, 5.0)})
    monkeypatch.setattr(measured, "user_table", lambda: tmp_path / "t.json")
    measured.in_force.cache_clear()
    settings._measured.cache_clear()
    quantised = SPEC._replace(kv_dtype=torch.float8_e4m3fn, softcap=True)  # a plan is not told of either
    try:
        if taken:
            assert settings.in_force(SPEC, device) == settings.Settings(**values)
            assert settings.in_force(quantised, device) == settings.Settings(**values)
        else:
            with pytest.warns(UserWarning, match="a measured setting of the cuda backend is not used"):
                assert settings.in_force(SPEC, device) is None
        assert settings.in_force(SPEC._replace(page_size=64), device) is None
    finally:
        monkeypatch.undo()
        measured.in_force.cache_clear()
        settings._measured.cache_clear()


@pytest.fixture
def csrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the kernel sources, from which hashes are made."""
    root = source_root()
    assert root is not None
    copy = Path(shutil.copytree(root, tmp_path / "csrc"))
    monkeypatch.setattr(sources, "source_root", lambda: copy)
    settings.kernel_hash.cache_clear()
    yield copy
    monkeypatch.undo()
    settings.kernel_hash.cache_clear()


def hash_on(arch: int, head_dim: int = 128) -> str:
    settings.kernel_hash.cache_clear()
    with stand_in("cuda", Gpu.of_arch(arch, 100)):
        return settings.tuning_key(SPEC._replace(head_dim=head_dim, head_dim_v=head_dim)).kernel


@pytest.mark.parametrize(
    ("file", "on_80", "on_90"),
    [
        ("kernels/attention_sm80/mainloop.cuh", True, True),  # serves both
        ("kernels/attention_sm90/consumer.cuh", False, True),
        ("kernels/plan/launch.cu", True, True),
        ("kernels/append_kv/launch.cu", False, False),
        ("kernels/pages/launch.cu", False, False),
        ("kernels/merge_states/launch.cu", False, False),
        ("variants.toml", False, False),  # a comment in it
    ],
)
def test_an_entry_is_void_when_what_serves_it_changes_and_not_else(
    csrc: Path, file: str, on_80: bool, on_90: bool
) -> None:
    before = hash_on(80), hash_on(90)
    with (csrc / file).open("a") as text:
        text.write("\n# changed\n" if file.endswith("toml") else "\n// changed\n")
    assert (hash_on(80) != before[0], hash_on(90) != before[1]) == (on_80, on_90)


def test_flags_and_constants_of_a_kernel_void_its_entries(csrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hash_on(80)
    assert before != hash_on(80, head_dim=64)
    monkeypatch.setattr(store, "FLAGS", (*store.FLAGS, "-O1"))
    flagged = hash_on(80)
    assert flagged != before
    one = select.candidates(settings._problem(SPEC), Gpu.of_arch(80, 100))[0][0]
    other = replace(one, constants=(("tile_rows", 64),))
    assert settings.kernel_hash((one,)) != settings.kernel_hash((other,))


def test_without_sources_there_is_neither_hash_nor_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Gpu.of_arch(80, 33)
    monkeypatch.setattr(sources, "source_root", lambda: None)
    monkeypatch.setattr(select, "all_variants", lambda: ())
    select.candidates.cache_clear()
    settings.kernel_hash.cache_clear()
    try:
        assert settings.in_force(SPEC, device) is None
        with pytest.raises(FileNotFoundError, match="without kernel sources"):
            settings.kernel_hash(())
    finally:
        monkeypatch.undo()
        select.candidates.cache_clear()
        settings._measured.cache_clear()


def run(*arguments: str) -> Any:
    mixes = ("--mix", "2x1+500", "--mix", "1x64+100,2x1+99")
    return CliRunner().invoke(cli, ["tune", "kernels", "--backend", "cuda", *mixes, *arguments, "--json"])


def test_the_command_lists_without_a_gpu_and_builds_nothing(loaded: list[str], tmp_path: Path) -> None:
    result = run("--arch", "90", "--table", str(tmp_path / "t.json"))
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["keys"]
    assert (row["state"], row["compiled"], row["default"]["arch"]) == ("to be measured", None, 90)
    assert {values["arch"] for values in row["settings"]} == {80, 90}
    assert row["key"]["device"].startswith("sm_90")
    assert loaded == []
    refused = run("--arch", "80", "--dtype", "bf16", "--dtype", "fp32", "--table", str(tmp_path / "t.json"))
    assert "cuda: q: no attention variant is listed for head dim 128, fp32 on sm_80" in refused.output


@pytest.mark.parametrize("spilling", ["80", "90a"])
def test_the_command_compiles_without_a_gpu_and_leaves_out_what_is_refused(
    loaded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spilling: str
) -> None:
    built: list[str] = []

    def build(variants: tuple[Variant, ...]) -> dict[str, store.Library]:
        (one,) = variants
        built.append(one.arch)
        if one.arch == spilling:
            raise builder.BuildError(f"{one.name} spills registers")
        used = {"registers": 200, "spill_stores": 0, "spill_loads": 0, "stack": 0, "shared": 128}
        manifest = {"kernels": {"main": used, "small": {**used, "registers": 30}}}
        return {one.name: store.Library(tmp_path, "cache", manifest)}

    monkeypatch.setattr(builder, "build", build)
    result = run("--arch", "90", "--compile", "--table", str(tmp_path / "t.json"))
    assert sorted(set(built)) == sorted(built)  # each kernel once, however many settings share it
    if spilling == "90a":  # the default's own
        assert result.exit_code == 1
        assert (
            "the default's kernel cannot be compiled: attention_sm90-d128-bf16-sm90a spills registers" in result.output
        )
        return
    (row,) = json.loads(result.stdout)["keys"]
    state = {(one["values"]["arch"], one["refused"]) for one in row["compiled"]}
    assert state == {(90, ""), (80, "attention_sm80-d128-bf16-sm80 spills registers")}
    assert row["compiled"][0]["figures"] == {"registers": 200, "spill_bytes": 0}
    assert {values["arch"] for values in row["settings"]} == {90}


@pytest.mark.full
def test_the_command_compiles_with_nvcc(tmp_path: Path) -> None:
    wanted = select.candidates(SPEC, Gpu.of_arch(80, 108))[0][0]
    reason = builder.unbuildable_reason(wanted)
    if reason is not None:
        pytest.skip(reason)
    result = run("--arch", "80", "--compile", "--table", str(tmp_path / "t.json"))
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["keys"]
    for one in row["compiled"]:
        assert 32 < one["figures"]["registers"] <= 255
        assert (one["figures"]["spill_bytes"], one["refused"]) == (0, "")

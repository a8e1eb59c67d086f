"""Settings of the CUDA backend, on GPUs that are not at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from chunkattn import AttentionSpec
from chunkattn.backends.cuda import backend, libraries, select, settings
from chunkattn.backends.device import Gpu, stand_in
from chunkattn.build import builder, store
from chunkattn.build.variants import Variant, all_variants
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

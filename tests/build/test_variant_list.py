"""csrc/variants.toml: what it may say, and that what it says can be served."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch

from chunkattn.backends.cuda import select, work_spec
from chunkattn.backends.device import Gpu
from chunkattn.build import sources, variants
from chunkattn.types import AttentionSpec


def read(tmp_path: Path, text: str) -> tuple[variants.Variant, ...]:
    path = tmp_path / "variants.toml"
    path.write_text('[kernels.one]\nsource = "one.cu"\n' + text)
    return variants.read(path)


def test_lists_are_products(tmp_path):
    found = read(
        tmp_path,
        '[[variants]]\nkernel = "one"\narch = ["80", "90a"]\nhead_dims = [[64, 64], [192, 128]]\n'
        'dtype = ["bf16", "fp16"]\nkv_dtype = ["same", "e5m2"]\n',
    )
    assert len(found) == 16
    names = {variant.name for variant in found}
    assert {"one-d64-bf16-sm80", "one-d192x128-fp16-kv_e5m2-sm90a"} <= names


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('kernel = "two"\narch = ["80"]', "expected a listed kernel"),
        ('kernel = "one"\narch = ["80"]\ntiles = 3', "expected a listed kernel and fields"),
        ('kernel = "one"\narch = ["75"]', "arch: expected one of 80, 90a, got '75'"),
        ('kernel = "one"\narch = ["80", "80"]', "expected every variant once, got one-sm80 twice"),
    ],
)
def test_mistakes_are_named(tmp_path, entry, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, f"[[variants]]\n{entry}\n")


def test_an_entry_may_lack_more_than_its_kernel(tmp_path):
    path = tmp_path / "variants.toml"
    path.write_text(
        '[kernels.one]\nsource = "one.cu"\nlacks = ["alibi"]\n'
        '[[variants]]\nkernel = "one"\narch = ["80"]\nlacks = ["kv_scale"]\n'
        '[[variants]]\nkernel = "one"\narch = ["90a"]\n'
    )
    assert [variant.lacks for variant in variants.read(path)] == [("alibi", "kv_scale"), ("alibi",)]


def test_every_listed_source_is_there():
    root = sources.source_root()
    assert root is not None
    listed = variants.all_variants()
    assert {"merge_states", "append_kv", "pages", "plan"} <= {variant.kernel for variant in listed}
    for variant in listed:
        assert (root / variant.source).is_file(), variant.name


def test_attention_variants_say_what_the_planner_reads():
    """Variants that one plan may have to serve agree on it, whatever the cache holds, whichever options are asked."""
    shapes: dict[tuple[object, ...], tuple[int, ...]] = {}
    for variant in variants.all_variants():
        if not variant.kernel.startswith("attention_"):
            continue
        said = tuple(variant.constant(name) for name in work_spec.CONSTANTS)
        problem = (variant.head_dim, variant.head_dim_v, variant.dtype)
        assert shapes.setdefault(problem, said) == said, variant.name
        spec = work_spec.of_variant(variant, Gpu.of_arch(90, 132), 8, 2, 2)
        assert spec.min_split % spec.kv_tile == 0
        assert spec.invariant_split % spec.kv_tile == 0


def test_architectures_are_chosen_newest_first():
    def names(arch: int) -> list[str]:
        return [variant.arch for variant in select.of_kernel("plan", Gpu.of_arch(arch, 4))]

    assert names(80) == ["80"]
    assert names(89) == ["80"]
    assert names(90) == ["90a", "80"]
    assert names(100) == ["80"]


def test_what_is_not_listed_is_refused_with_the_reason():
    spec = AttentionSpec("cuda", torch.bfloat16, torch.bfloat16, 4, 2, 512, 520, 16)
    found, reason = select.candidates(spec, Gpu.of_arch(80, 4))
    assert found == ()
    assert reason == "q: no attention variant is listed for head dim 512/520, bf16 on sm_80"
    assert "8.0 is needed, the GPU has 7.5" in select.candidates(spec, Gpu.of_arch(75, 4))[1]


@pytest.mark.parametrize(
    ("facts", "argument", "of_plan"),
    [
        ({"head_dim": 512, "head_dim_v": 64}, "q", "head_dim"),
        ({"head_dim": 64, "head_dim_v": 512}, "v_cache", "head_dim_v"),
        ({"dtype": torch.float32, "kv_dtype": torch.float32}, "q", "dtype"),
        ({"dtype": torch.float16, "kv_dtype": torch.int8}, "k_cache", None),
    ],
)
def test_the_reason_names_the_argument_that_does_not_fit(facts, argument, of_plan):
    spec = AttentionSpec("cuda", torch.bfloat16, torch.bfloat16, 4, 2, 64, 64, 16)._replace(**facts)
    found, reason = select.candidates(spec, Gpu.of_arch(80, 4))
    assert found == ()
    assert reason.startswith(f"{argument}: no attention variant is listed for head dim ")
    found, reason = select.candidates(spec._replace(op="plan"), Gpu.of_arch(80, 4))
    assert bool(found) == (of_plan is None)
    assert reason.split(":")[0] == (of_plan or "")


def test_options_that_a_kernel_lacks_are_refused(monkeypatch):
    variant = variants.Variant("attention_x", "80", "x.cu", lacks=("alibi", "kv_scale"))
    spec = AttentionSpec("cuda", torch.bfloat16, torch.int8, 4, 2, 64, 64, 16, alibi=True, sinks=True, kv_scale="head")
    assert select.lacking(variant, spec) == ["alibi", "kv_scale"]
    listed = dataclasses.replace(variant, head_dim=64, head_dim_v=64, dtype="bf16", kv_dtype="i8")
    monkeypatch.setattr(select, "all_variants", lambda: (listed,))
    select.candidates.cache_clear()
    refused = select.candidates(spec, Gpu.of_arch(80, 4))
    select.candidates.cache_clear()
    assert refused == ((), "alibi_slopes, k_scale: not among the options of attention_x")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [40, 64, 72, 128])
def test_byte_caches_are_served_by_the_newest_kernel(head_dim, dtype):
    """With scales of every kind; beside fp16 those of tokens need the other one."""
    for scale in ("none", "tensor", "head", "token"):
        spec = AttentionSpec("cuda", dtype, torch.float8_e4m3fn, 4, 2, head_dim, head_dim, 16, kv_scale=scale)
        found, _ = select.candidates(spec, Gpu.of_arch(90, 4))
        older = scale == "token" and dtype == torch.float16
        assert found[0].kernel == ("attention_sm80" if older else "attention_sm90")


def test_head_dims_run_in_the_narrowest_tile_that_holds_them(monkeypatch):
    dims = [(128, 128), (64, 64), (192, 128)]
    listed = tuple(
        variants.Variant("attention_x", arch, "x.cu", head_dim=d, head_dim_v=dv, dtype="bf16", kv_dtype="bf16")
        for d, dv in dims
        for arch in ("80", "90a")
    )
    monkeypatch.setattr(select, "all_variants", lambda: listed)
    select.candidates.cache_clear()
    for head_dim, head_dim_v, expected in ((64, 64, 64), (8, 64, 64), (72, 64, 128), (136, 40, 192)):
        spec = AttentionSpec("cuda", torch.bfloat16, torch.bfloat16, 4, 2, head_dim, head_dim_v, 16)
        found, _ = select.candidates(spec, Gpu.of_arch(90, 4))
        assert (found[0].head_dim, found[0].arch) == (expected, "90a")
        assert select.candidates(spec, Gpu.of_arch(80, 4))[0][0].head_dim == expected
    select.candidates.cache_clear()


@pytest.mark.parametrize(
    ("head_dims", "tile"),
    [
        ((8, 8), (32, 32)),
        ((40, 40), (64, 64)),
        ((64, 64), (64, 64)),
        ((72, 72), (96, 96)),
        ((80, 80), (96, 96)),
        ((96, 40), (96, 96)),
        ((96, 104), (128, 128)),
        ((128, 128), (128, 128)),
        ((136, 40), (192, 128)),
        ((192, 128), (192, 128)),
        ((160, 160), (256, 256)),
        ((192, 136), (256, 256)),
        ((256, 64), (256, 256)),
        ((40, 256), (256, 256)),
    ],
)
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        (torch.float16, torch.float16),
        *((torch.bfloat16, kv) for kv in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)),
    ],
)
def test_head_dims_and_caches_that_are_listed(head_dims, tile, dtype, kv_dtype):
    """sm_90 takes the same tiles of the older kernel where its own has none."""
    scale = "none" if kv_dtype == dtype else "head"
    spec = AttentionSpec("cuda", dtype, kv_dtype, 4, 2, *head_dims, 16, kv_scale=scale)
    for arch in (80, 90, 100):
        found, reason = select.candidates(spec, Gpu.of_arch(arch, 4))
        assert not reason
        old = [variant for variant in found if variant.kernel == "attention_sm80"]
        assert (old[0].head_dim, old[0].head_dim_v) == tile
        wgmma = tile != (32, 32) and (kv_dtype == dtype or max(head_dims) <= 128)
        assert (found[0].kernel == "attention_sm90") == (arch == 90 and wgmma)


def test_every_variant_that_a_call_may_need_takes_its_plan():
    """A plan is made before it is known what the cache holds and what else is asked."""
    dims = (8, 32, 40, 64, 72, 96, 104, 128, 136, 192, 200, 256)
    for arch, dtype, head_dim, head_dim_v in itertools.product((80, 90), (torch.bfloat16, torch.float16), dims, dims):
        device = Gpu.of_arch(arch, 4)
        spec = AttentionSpec("cuda", dtype, dtype, 4, 2, head_dim, head_dim_v, 16)
        planned = {work_spec.constants_of(v) for v in select.candidates(spec._replace(op="plan"), device)[0]}
        assert len(planned) == (head_dim_v > 32 or head_dim <= 32)
        for kv_dtype in (dtype, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8):
            asked = spec._replace(kv_dtype=kv_dtype, invariant=True, kv_scale="head")
            assert {work_spec.constants_of(v) for v in select.candidates(asked, device)[0]} <= planned


def test_variants_that_another_plan_would_need_serve_nobody(monkeypatch):
    """Not even where they alone have a cache's dtype: the plan may have been made for the best tile."""
    listed = tuple(
        variants.Variant(
            "attention_x", "80", "x.cu", head_dim=dim, head_dim_v=dim, dtype="bf16", kv_dtype=kv_dtype,
            constants=(("tile_rows", rows),),
        )
        for dim, rows, kv_dtype in ((64, 128, "bf16"), (128, 128, "i8"), (256, 64, "bf16"), (256, 64, "e5m2"))
    )  # fmt: skip
    monkeypatch.setattr(select, "all_variants", lambda: listed)
    select.candidates.cache_clear()
    for kv_dtype, expected in ((torch.bfloat16, [64]), (torch.int8, [128]), (torch.float8_e5m2, [])):
        spec = AttentionSpec("cuda", torch.bfloat16, kv_dtype, 4, 2, 64, 64, 16)
        assert [variant.head_dim for variant in select.candidates(spec, Gpu.of_arch(80, 4))[0]] == expected
    select.candidates.cache_clear()


def test_the_newest_kernel_comes_before_the_narrowest_tile(monkeypatch):
    listed = tuple(
        variants.Variant("attention_x", arch, "x.cu", head_dim=d, head_dim_v=d, dtype="bf16", kv_dtype="bf16")
        for arch, d in (("80", 96), ("80", 128), ("90a", 128))
    )
    monkeypatch.setattr(select, "all_variants", lambda: listed)
    select.candidates.cache_clear()
    spec = AttentionSpec("cuda", torch.bfloat16, torch.bfloat16, 4, 2, 80, 80, 16)
    found, _ = select.candidates(spec, Gpu.of_arch(90, 4))
    assert [(variant.arch, variant.head_dim) for variant in found] == [("90a", 128), ("80", 96), ("80", 128)]
    select.candidates.cache_clear()


def test_narrow_values_run_in_narrow_tiles_alone():
    """Only these multiply V with what rounding takes off the weights."""
    for head_dim, head_dim_v, expected in ((32, 32, 32), (16, 8, 32), (32, 40, 64), (40, 32, None), (128, 16, None)):
        spec = AttentionSpec("cuda", torch.bfloat16, torch.bfloat16, 4, 2, head_dim, head_dim_v, 16)
        found, reason = select.candidates(spec, Gpu.of_arch(90, 4))
        assert (found[0].head_dim_v if found else None) == expected
        assert bool(reason) == (expected is None)

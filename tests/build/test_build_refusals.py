"""What a build refuses, in one sentence, leaving nothing behind (d35)."""

from __future__ import annotations

import pytest
from workshop import Workshop, ptxas_says

from chunkattn.build import builder, step, toolchain

SCALE = "scale-sm80"
C7510 = (
    "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    "insufficient register resources for the wgmma pipeline in the function 'one'\n"
)


def build(listed, *names):
    return builder.build([listed[name] for name in names], report=lambda line: None)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (
            {"says": ptxas_says(stores=8, loads=12)},
            r"scale-sm80: one spills registers: 8 bytes stored, 12 bytes loaded",
        ),
        ({"says": ptxas_says() + C7510}, r"scale-sm80: ptxas serialises wgmma: .*C7510"),
        ({"says": "launch.cu(3): error: expected a ;\n", "status": 2}, r"status 2:(.|\n)*error: expected a ;"),
    ],
)
def test_what_does_not_pass_is_not_published(shop: Workshop, listed, told, reason):
    shop.tell(**told)
    with pytest.raises(builder.BuildError, match=reason):
        build(listed, SCALE)
    assert shop.published() == []
    assert shop.scratch() == []
    shop.tell()
    build(listed, SCALE)


def test_a_variant_that_fails_does_not_keep_others_from_being_built(shop: Workshop, listed, tmp_path):
    shop.write("kernels/wide/launch.cu", "")
    shop.tell(status=1)
    with pytest.raises(builder.BuildError):
        build(listed, "scale-sm90a")
    shop.tell()
    build(listed, SCALE)
    shop.tell(status=1)
    with pytest.raises(builder.BuildError, match="scale-sm90a"):
        build(listed, SCALE, "scale-sm90a")
    assert len(shop.published()) == 1


def test_d35_no_nvcc_is_one_line(shop: Workshop, listed, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", ":/nowhere/cuda")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", "/nowhere/bin")
    monkeypatch.setattr(toolchain, "USUAL_NVCC", shop.root / "no-nvcc")
    reason = builder.unbuildable_reason(listed[SCALE])
    assert reason is not None
    assert reason.startswith("nvcc was not found (looked in CUDA_HOME=/nowhere/cuda, PATH, ")
    assert "\n" not in reason
    with pytest.raises(builder.BuildError, match="scale-sm80 cannot be built: nvcc was not found"):
        build(listed, SCALE)


def test_d35_a_cuda_home_with_a_stray_colon_is_understood(shop: Workshop, listed, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", f":{shop.home}")
    assert toolchain.find_nvcc() == str(shop.home / "bin" / "nvcc")
    build(listed, SCALE)


def test_no_ninja_is_one_line(shop: Workshop, listed, monkeypatch):
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    assert builder.unbuildable_reason(listed[SCALE]) == "ninja is not installed: pip install ninja"


def test_no_cutlass_headers_is_one_line_with_the_command(shop: Workshop, listed, monkeypatch):
    find_spec = toolchain.importlib.util.find_spec
    monkeypatch.setattr(
        toolchain.importlib.util, "find_spec", lambda name: None if name == "cutlass_library" else find_spec(name)
    )
    wide = listed["wide-d64-bf16-sm80"]
    assert "pip install --no-deps nvidia-cutlass" in builder.unbuildable_reason(wide)
    with pytest.raises(builder.BuildError, match=r"CUTLASS headers .* pip install"):
        build(listed, wide.name)
    build(listed, SCALE)  # needs none


def test_a_compiler_that_does_not_run_is_one_line(shop: Workshop, listed):
    (shop.home / "bin" / "nvcc").write_text("#!/bin/false\n")
    toolchain.forget()
    assert "nvcc does not run" in builder.unbuildable_reason(listed[SCALE])


def test_a_cache_that_cannot_be_written_is_one_line(shop: Workshop, listed):
    shop.cache.write_text("a file where the folder should be")
    reason = builder.unbuildable_reason(listed[SCALE])
    assert reason == f"the cache directory {shop.libraries} cannot be written (set CHUNKATTN_CACHE to another one)"
    with pytest.raises(builder.BuildError, match="scale-sm80 cannot be built in"):
        build(listed, SCALE)


def test_resources_of_every_kernel_are_read():
    log = ptxas_says(registers=168, shared=0).replace("'one'", "'two'") + "\n" + ptxas_says(stack=16)
    assert step.resources(log) == {
        "two": {"registers": 168, "spill_stores": 0, "spill_loads": 0, "stack": 0, "shared": 0},
        "one": {"registers": 40, "spill_stores": 0, "spill_loads": 0, "stack": 16, "shared": 1024},
    }

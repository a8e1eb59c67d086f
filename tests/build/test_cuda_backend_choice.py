"""What the CUDA backend says where it cannot serve, and that another backend serves then (d35)."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from workshop import Workshop

import chunkattn
from chunkattn.backends import device
from chunkattn.backends.cuda import backend, libraries
from chunkattn.build import builder, sources, store, toolchain, variants
from chunkattn.planning import choose

pytestmark = pytest.mark.skipif(isinstance(libraries.native(), str), reason="the native core is not built")
MERGE = chunkattn.AttentionSpec("cpu", torch.float32, torch.float32, 2, 2, 8, 8, 1, op="merge_states")
ROOT = sources.source_root()


@pytest.fixture(autouse=True)
def gpu(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors count as an sm_90 GPU's; the real list of variants, the workshop's cache and compiler."""
    monkeypatch.setattr(sources, "source_root", lambda: ROOT)
    monkeypatch.setattr(libraries, "_loaded", {})
    monkeypatch.setattr(libraries, "_failed", {})
    monkeypatch.setattr("chunkattn.backends.BY_DEVICE", {"cpu": ("cuda", "cpu", "reference")})

    def forget() -> None:
        for cached in (choose.backend, choose.first, backend._of_kernel, backend._of_choice):
            cached.cache_clear()

    forget()
    with device.stand_in("cpu", device.Gpu.of_arch(90, 4)):
        yield
    forget()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise toolchain.MissingToolError("nvcc was not found (looked in PATH)")

    monkeypatch.setattr(toolchain, "find_nvcc", missing)


def merge(backend: str | None = None) -> torch.Tensor:
    one, zero = torch.ones(1, 1, 8), torch.zeros(1, 1)
    return chunkattn.merge_states(one, zero, one, zero, backend=backend)[0]


def test_without_library_and_compiler_another_backend_serves(no_compiler, shop):
    assert merge().eq(1.0).all()
    with pytest.raises(chunkattn.UnsupportedError) as error:
        merge("cuda")
    reason = f"cuda: merge_states-sm90a is neither in the package nor in {shop.libraries} and nvcc was not found"
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
    (line,) = [line for line in chunkattn.explain(MERGE).splitlines() if line.startswith("cuda")]
    assert "refuses" in line
    assert "nvcc was not found" in line


def test_explain_says_that_a_variant_would_be_built_and_builds_nothing(shop: Workshop):
    (line,) = [line for line in chunkattn.explain(MERGE).splitlines() if line.startswith("cuda")]
    assert "merge_states-sm90a (built on first use)" in line
    assert shop.compiled() == 0


def test_a_build_that_fails_lets_another_backend_serve(shop: Workshop):
    shop.tell(says="error: no such type\n", status=1)
    assert merge().eq(1.0).all()
    assert shop.compiled() == 2  # sm_90a's failed, sm_80's would have served
    with pytest.raises(chunkattn.UnsupportedError, match="error: no such type"):
        merge("cuda")
    assert shop.compiled() == 2  # nobody waits for the same failure twice


def test_the_variant_of_an_older_architecture_serves_where_the_newer_one_is_missing(shop: Workshop, monkeypatch):
    core = libraries.native()
    assert not isinstance(core, str)
    publish(shop, EXPORTS.format(abi=core.launch_abi()).replace("return 7", "return 0"), arch="80")
    monkeypatch.setattr(builder, "unbuildable_reason", lambda variant: "nvcc was not found")
    (line,) = [line for line in chunkattn.explain(MERGE).splitlines() if line.startswith("cuda")]
    assert "merge_states-sm80 (cache)" in line
    merge("cuda")


def test_a_file_that_is_no_library_is_refused(shop: Workshop):
    """The stand-in compiler writes text."""
    with pytest.raises(chunkattn.UnsupportedError, match=r"merge_states-sm90a\.so cannot be loaded"):
        merge("cuda")
    assert merge().eq(1.0).all()


def publish(shop: Workshop, code: str, *flags: str, arch: str = "90a") -> Path:
    """A real shared library in place of what the stand-in compiler wrote."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    variant = next(v for v in variants.all_variants() if v.name == f"merge_states-sm{arch}")
    library = builder.build([variant], report=lambda line: None)[variant.name]
    source = shop.root / "library.cpp"
    source.write_text(code)
    subprocess.run(["g++", "-shared", "-fPIC", str(source), *flags, "-o", str(library.path)], check=True)
    manifest = library.path.parent / store.MANIFEST
    before = f'"bytes": {library.manifest["bytes"]}'
    assert before in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(before, f'"bytes": {library.path.stat().st_size}'))
    return library.path


EXPORTS = """
#include <cstdint>
extern "C" int64_t chunkattn_abi() {{ return {abi}; }}
extern "C" const char* chunkattn_error(int32_t) {{ return "the kernel is tired"; }}
extern "C" int32_t chunkattn_merge_states(const void*, const void*) {{ return 7; }}
"""


def test_a_library_for_other_structs_is_refused_before_it_is_called(shop: Workshop):
    publish(shop, EXPORTS.format(abi=-5))
    with pytest.raises(chunkattn.UnsupportedError, match=r"expected a library for launch ABI \d+, got one for -5"):
        merge("cuda")


def test_d35_another_program_in_its_place_is_refused(shop: Workshop):
    publish(shop, 'extern "C" int other() { return 1; }')
    with pytest.raises(chunkattn.UnsupportedError, match="expected a kernel library of chunkattn, got another"):
        merge("cuda")


def test_a_failed_launch_says_why(shop: Workshop):
    core = libraries.native()
    assert not isinstance(core, str)
    publish(shop, EXPORTS.format(abi=core.launch_abi()))
    with pytest.raises(RuntimeError, match="merge_states-sm90a: the kernel is tired"):
        merge("cuda")


def test_d35_a_missing_cuda_runtime_is_named(shop: Workshop):
    runtime = shop.root / "libcudart.so.99"
    subprocess.run(
        ["g++", "-shared", "-x", "c++", "/dev/null", f"-Wl,-soname,{runtime.name}", "-o", runtime], check=True
    )
    core = libraries.native()
    assert not isinstance(core, str)
    path = publish(shop, EXPORTS.format(abi=core.launch_abi()), "-Wl,--no-as-needed", str(runtime))
    runtime.rename(shop.root / "elsewhere")
    with pytest.raises(OSError, match=r"libcudart\.so\.99"):
        ctypes.CDLL(str(path))
    with pytest.raises(chunkattn.UnsupportedError, match=r"built with CUDA 99, whose runtime libcudart\.so\.99 is not"):
        merge("cuda")

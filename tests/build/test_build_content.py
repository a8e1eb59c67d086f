"""What a library is keyed by: contents, never time stamps; compiler, architecture, flags (d35)."""

from __future__ import annotations

import os

from workshop import Workshop

from chunkattn.build import builder, store, toolchain

SCALE = "scale-sm80"


def build(listed, *names):
    return builder.build([listed[name] for name in names], report=lambda line: None)


def test_a_variant_is_built_once(shop: Workshop, listed):
    first = build(listed, SCALE)[SCALE]
    assert shop.compiled() == 1
    assert first.path.read_bytes().startswith(b"half and half")
    assert first.place == "cache"
    assert 0 <= first.manifest["cpu_seconds"] <= 60
    assert 1 << 20 < first.manifest["peak_bytes"] < 1 << 32
    assert first.manifest["kernels"] == {
        "one": {"registers": 40, "spill_stores": 0, "spill_loads": 0, "stack": 0, "shared": 1024}
    }
    assert build(listed, SCALE)[SCALE].path == first.path
    assert shop.compiled() == 1
    assert shop.scratch() == []


def test_d35_an_edit_with_the_same_time_stamp_and_size_is_noticed(shop: Workshop, listed):
    header = shop.csrc / "include/chunkattn/core/part.h"
    build(listed, SCALE)
    status = header.stat()
    header.write_text("int part = 2;\n")
    os.utime(header, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert header.stat().st_size == status.st_size
    assert store.find(listed[SCALE]) is None
    build(listed, SCALE)
    assert shop.compiled() == 2
    header.write_text("int part = 1;\n")
    assert build(listed, SCALE)
    assert shop.compiled() == 2  # what it was before is still there


def test_other_files_do_not_matter(shop: Workshop, listed):
    build(listed, SCALE)
    (shop.csrc / "include/chunkattn/core/unrelated.h").write_text("int changed;\n")
    (shop.csrc / "kernels/scale/kernel.cuh").touch()
    build(listed, SCALE)
    assert shop.compiled() == 1


def test_d35_two_architectures_are_two_libraries(shop: Workshop, listed):
    both = build(listed, "scale-sm80", "scale-sm90a")
    assert len({library.path for library in both.values()}) == 2
    assert b"arch=compute_80,code=[sm_80,compute_80]" in both["scale-sm80"].path.read_bytes()
    assert b"arch=compute_90a,code=[sm_90a,compute_90a]" in both["scale-sm90a"].path.read_bytes()


def test_constants_and_dtypes_reach_the_compiler(listed):
    defines = listed["wide-d192x128-bf16-kv_e4m3-sm80"].defines()
    assert set(defines) == {
        "-DCHUNKATTN_HEAD_DIM=192",
        "-DCHUNKATTN_HEAD_DIM_V=128",
        "-DCHUNKATTN_DTYPE=chunkattn::DType::kBF16",
        "-DCHUNKATTN_KV_DTYPE=chunkattn::DType::kE4M3",
        "-DCHUNKATTN_TILE_ROWS=64",
    }


def test_another_compiler_means_another_library(shop: Workshop, listed):
    old = build(listed, SCALE)[SCALE]
    shop.tell(version="2.0")
    toolchain.forget()
    new = build(listed, SCALE)[SCALE]
    assert new.path != old.path
    assert shop.compiled() == 2


def test_without_a_compiler_a_library_of_the_same_sources_serves(shop: Workshop, listed, monkeypatch):
    built = build(listed, SCALE)[SCALE]

    def missing():
        raise toolchain.MissingToolError("nvcc was not found")

    monkeypatch.setattr(toolchain, "find_nvcc", missing)
    assert store.find(listed[SCALE]).path == built.path
    assert build(listed, SCALE)[SCALE].path == built.path
    assert store.find(listed["scale-sm90a"]) is None
    shop.write("include/chunkattn/core/part.h", "int part = 3;\n")
    assert store.find(listed[SCALE]) is None


def test_the_package_comes_first_whoever_compiled_it(shop: Workshop, listed):
    packaged = builder.build([listed[SCALE]], output=store.PACKAGE_LIBRARIES, report=lambda line: None)[SCALE]
    shop.tell(version="2.0")
    toolchain.forget()
    found = build(listed, SCALE)[SCALE]
    assert (found.path, found.place) == (packaged.path, "package")
    assert shop.compiled() == 1


def test_a_library_that_lost_bytes_is_built_again(shop: Workshop, listed):
    library = build(listed, SCALE)[SCALE]
    library.path.write_bytes(library.path.read_bytes()[:10])
    assert store.find(listed[SCALE]) is None
    assert build(listed, SCALE)[SCALE].path == library.path
    assert library.path.read_bytes().startswith(b"half and half")
    (library.path.parent / store.MANIFEST).write_text("{")
    assert store.find(listed[SCALE]) is None
    build(listed, SCALE)
    assert shop.compiled() == 3

"""Builds the torch-free native core with g++, pybind11 and ninja.

Without a C++ compiler the package installs all the same and says so; everything then runs on the reference backend.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
CSRC = ROOT / "csrc"
COMMON_FLAGS = [
    *("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno", "-Wall", "-Wextra"),
    # A product and a sum become one operation only where the code says so: equal bits on every path.
    "-ffp-contract=off",
    # g++ 12 warns inside its own AVX-512 intrinsics.
    *("-Wno-maybe-uninitialized", "-Wno-uninitialized"),
]
# One translation unit an instruction set; which one runs is decided at run time.
ISA_FLAGS = {
    "isa_avx512bf16.cpp": ["-march=x86-64-v4", "-mavx512bf16", "-DCHUNKATTN_ISA=avx512bf16"],
    "isa_avx512.cpp": ["-march=x86-64-v4", "-DCHUNKATTN_ISA=avx512"],
    "isa_avx2.cpp": ["-march=x86-64-v3", "-DCHUNKATTN_ISA=avx2"],
    "isa_portable.cpp": ["-DCHUNKATTN_ISA=portable"],
}


# Files of csrc/cpu that attention's speed does not depend on.
OTHER_OPERATORS = ("append_kv", "merge_states", "pages", "rows", "checks")


def kernel_hash() -> str:
    """Of what attention on a CPU is made from; measured settings are of use to this content alone."""
    digest = hashlib.sha256()
    for folder in ("cpu", "include/chunkattn/core", "include/chunkattn/sched"):
        for path in sorted(path for path in (CSRC / folder).rglob("*") if path.is_file()):
            if path.parent.name != "cpu" or path.stem not in OTHER_OPERATORS:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def flags_of(source: str) -> list[str]:
    """Compiler flags of one translation unit."""
    if source == "chosen.cpp":
        return [f"-DCHUNKATTN_KERNEL_HASH='\"{kernel_hash()}\"'"]
    return ISA_FLAGS.get(source, [])


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, g++ or c++."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "c++")):
        if shutil.which(name.split()[0]):
            return name
    return None


def find_ninja() -> str:
    """ninja of the build requirements, or one on the PATH."""
    try:
        import ninja
    except ImportError:
        return "ninja"
    return str(Path(ninja.BIN_DIR) / "ninja")


def escaped(path: object) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def write_ninja(file: Path, compiler: str, includes: list[str], sources: list[str], target: Path) -> None:
    """One compile step a source, one link step."""
    flags = " ".join([*COMMON_FLAGS, *(f"-I{escaped(include)}" for include in includes)])
    lines = [
        "ninja_required_version = 1.8",
        f"cxx = {compiler}",
        "rule compile",
        f"  command = $cxx -MMD -MF $out.d {flags} $isa -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        "  command = $cxx -shared -fopenmp $in -o $out",
    ]
    objects = []
    for source in sources:
        name = Path(source).name
        target_object = file.parent / (name + ".o")
        objects.append(escaped(target_object))
        lines.append(f"build {escaped(target_object)}: compile {escaped(ROOT / source)}")
        lines.append(f"  isa = {' '.join(flags_of(name))}")
    lines.append(f"build {escaped(target)}: link {' '.join(objects)}")
    file.write_text("\n".join(lines) + "\n")


class BuildNative(build_ext):
    """Runs ninja; a failure leaves a package without the native core."""

    def build_extension(self, ext: Extension) -> None:
        compiler = find_compiler()
        if compiler is None:
            self.explain("no C++ compiler was found (set CXX, or install g++)")
            return
        import pybind11

        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(self.build_temp).resolve()
        work.mkdir(parents=True, exist_ok=True)
        includes = [
            str(CSRC),
            str(CSRC / "include"),
            str(CSRC / "cpu"),
            str(CSRC / "binding"),
            pybind11.get_include(),
            sysconfig.get_paths()["include"],
        ]
        write_ninja(work / "build.ninja", compiler, includes, ext.sources, target)
        try:
            subprocess.run([find_ninja(), "-C", str(work)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            if os.environ.get("CHUNKATTN_REQUIRE_NATIVE") == "1":
                raise
            self.explain(f"the build of the native core failed ({error})")

    def explain(self, reason: str) -> None:
        print(f"chunkattn: {reason}; the package works, on the slow reference backend alone.", file=sys.stderr)


class BuildPackage(build_py):
    """Takes the sources of the GPU kernels along: an installed package builds them on first use. Needs no CUDA."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # the checkout itself is found then
            return
        target = Path(self.build_lib) / "chunkattn" / "csrc"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        shutil.copy(CSRC / "variants.toml", target)
        for folder in ("include", "kernels"):
            shutil.copytree(CSRC / folder, target / folder)


sources = sorted(str(path.relative_to(ROOT)) for folder in ("cpu", "binding") for path in (CSRC / folder).glob("*.cpp"))
setup(
    ext_modules=[Extension("chunkattn._native", sources=sources, optional=True)],
    cmdclass={"build_ext": BuildNative, "build_py": BuildPackage},
)

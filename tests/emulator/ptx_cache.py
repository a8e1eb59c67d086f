"""Compiling CUDA sources with nvcc, cached by the content of everything that goes in.

One nvcc runs at a time in this process and in others that share the cache: a CuTe kernel takes up to 4 GB.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .native import cache_directory


@functools.cache
def nvcc_path() -> str | None:
    return shutil.which("nvcc")


@functools.cache
def _nvcc_version() -> str:
    result = subprocess.run([str(nvcc_path()), "--version"], capture_output=True, text=True)
    return result.stdout


@functools.cache
def cutlass_directory() -> Path | None:
    """The `source` folder of the nvidia-cutlass wheel (headers and examples), None without it."""
    spec = importlib.util.find_spec("cutlass_library")
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).parent / "source"
    return source if source.is_dir() else None


def cutlass_includes() -> list[Path]:
    source = cutlass_directory()
    if source is None:
        return []
    return [source / "include", source / "tools" / "util" / "include"]


def _included_files(source: Path, includes: Sequence[Path], seen: set[Path]) -> None:
    """Files reached by #include "..." below the given folders; system headers count by the nvcc version."""
    if source in seen:
        return
    seen.add(source)
    for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', source.read_text(errors="replace"), re.M):
        for folder in (source.parent, *includes):
            candidate = folder / name
            if candidate.is_file():
                _included_files(candidate.resolve(), includes, seen)
                break


def _content_key(source: Path, flags: Sequence[str], includes: Sequence[Path]) -> str:
    files: set[Path] = set()
    _included_files(source.resolve(), includes, files)
    digest = hashlib.sha256(_nvcc_version().encode() + " ".join(flags).encode())
    for path in sorted(files):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:24]


def _build(source: Path, suffix: str, mode: Sequence[str], flags: Sequence[str], includes: Sequence[Path]) -> Path:
    nvcc = nvcc_path()
    if nvcc is None:
        raise RuntimeError("nvcc is not installed")
    all_flags = [*mode, *flags]
    folder = cache_directory() / "ptx"
    folder.mkdir(exist_ok=True)
    target = folder / f"{source.stem}-{_content_key(source, all_flags, includes)}{suffix}"
    if target.exists():
        return target
    with open(folder / "lock", "w") as lock, tempfile.TemporaryDirectory(dir=folder) as work:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        output = Path(work) / target.name
        command = [nvcc, *all_flags, *(f"-I{path}" for path in includes), str(source), "-o", str(output)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
        os.replace(output, target)
    return target


COMMON_FLAGS = ("-std=c++17", "-O3", "-lineinfo", "--expt-relaxed-constexpr", "-diag-suppress=20012,186,177")


def compile_ptx(source: Path, arch: str = "sm_90a", flags: Sequence[str] = (), includes: Sequence[Path] = ()) -> str:
    """The PTX of a .cu file, with line information.

    Raises:
        RuntimeError: nvcc is missing or refuses the source.
    """
    mode = ("-ptx", f"-arch={arch}", *COMMON_FLAGS)
    return _build(source, ".ptx", mode, flags, includes).read_text()


def compile_library(source: Path, arch: str = "90a", flags: Sequence[str] = (), includes: Sequence[Path] = ()) -> Path:
    """A shared library of a .cu file for the stand-in CUDA runtime, with its PTX inside."""
    mode = ("-shared", "-Xcompiler", "-fPIC", "-cudart", "none", "-no-compress", *COMMON_FLAGS)
    target = (f"-gencode=arch=compute_{arch},code=compute_{arch}",)
    return _build(source, ".so", (*mode, *target), flags, includes)


def ptxas_resources(ptx: str, arch: str = "sm_90a") -> dict[str, dict[str, int]]:
    """Registers, spill bytes and static shared memory of each kernel, as ptxas reports them.

    Raises:
        RuntimeError: ptxas is missing or refuses the text.
    """
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        raise RuntimeError("ptxas is not installed")
    command = [ptxas, "-v", f"-arch={arch}", "-", "-o", os.devnull]
    result = subprocess.run(command, input=ptx, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(result.stderr)
    resources: dict[str, dict[str, int]] = {}
    kernel = ""
    for line in result.stderr.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)'", line):
            kernel = match.group(1)
            resources[kernel] = {"registers": 0, "spill_stores": 0, "spill_loads": 0, "static_shared": 0}
        if match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            resources[kernel].update(spill_stores=int(match.group(1)), spill_loads=int(match.group(2)))
        if match := re.search(r"Used (\d+) registers", line):
            resources[kernel]["registers"] = int(match.group(1))
        if match := re.search(r"(\d+) bytes smem", line):
            resources[kernel]["static_shared"] = int(match.group(1))
    return resources

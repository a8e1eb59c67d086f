"""Builds the emulator's native module with g++ and imports it. The build is cached by content."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

SOURCE = Path(__file__).resolve().parent / "src"
FLAGS = ["-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC"]
FLAGS += ["-fvisibility=hidden", "-Wall", "-Wextra"]


def cache_directory() -> Path:
    """Where built modules and PTX are kept: CHUNKATTN_EMULATOR_CACHE, or a folder of the user's cache."""
    given = os.environ.get("CHUNKATTN_EMULATOR_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(given) if given else Path(base) / "chunkattn" / "emulator"
    path.mkdir(parents=True, exist_ok=True)
    return path


def unavailable_reason() -> str | None:
    """Why the native module cannot be built here; None if it can."""
    if shutil.which("g++") is None:
        return "g++ is not installed"
    if importlib.util.find_spec("pybind11") is None:
        return "pybind11 is not installed"
    return None


def _cpu_identity() -> bytes:
    """Code built for one processor must not run on another one that shares the cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return b""
    return next((line for line in lines if line.startswith("flags")), "").encode()


def _content_hash(sources: list[Path]) -> str:
    digest = hashlib.sha256(" ".join(FLAGS).encode() + _cpu_identity())
    digest.update(str(sysconfig.get_config_var("EXT_SUFFIX")).encode())
    for path in sources:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")


def _object_key(source: Path, headers: bytes) -> str:
    return hashlib.sha256(headers + source.read_bytes()).hexdigest()[:16]


def _build(target: Path, sources: list[Path], headers: bytes) -> None:
    """Compiles what changed (objects are cached by content too) and links."""
    import pybind11

    includes = [f"-I{pybind11.get_include()}", f"-I{sysconfig.get_paths()['include']}"]
    objects = cache_directory() / "objects"
    objects.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=objects) as work:
        jobs, linked = [], []
        # The largest first, so that the cores stay busy to the end.
        for source in sorted(sources, key=lambda path: -path.stat().st_size):
            kept = objects / f"{source.stem}-{_object_key(source, headers)}.o"
            linked.append(str(kept))
            if not kept.exists():
                jobs.append((source, Path(work) / kept.name, kept))

        def compile_one(job: tuple[Path, Path, Path]) -> None:
            source, output, kept = job
            _compile(["g++", *FLAGS, *includes, "-c", str(source), "-o", str(output)])
            os.replace(output, kept)  # another process may have built it meanwhile: either is fine

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(compile_one, jobs))
        library = Path(work) / target.name
        _compile(["g++", "-shared", *linked, "-o", str(library)])
        os.replace(library, target)


@functools.cache
def module() -> ModuleType:
    """The native module `_ptxemu`, built on first use.

    Raises:
        RuntimeError: no compiler, or the sources do not compile.
    """
    reason = unavailable_reason()
    if reason:
        raise RuntimeError(f"the PTX emulator cannot be built: {reason}")
    files = sorted(SOURCE.glob("*.cpp")) + sorted(SOURCE.glob("*.h"))
    files = [path for path in files if path.stem != "fake_cudart"]
    directory = cache_directory() / f"native-{_content_hash(files)}"
    directory.mkdir(exist_ok=True)
    target = directory / f"_ptxemu{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not target.exists():
        headers = b"".join(path.name.encode() + path.read_bytes() for path in files if path.suffix == ".h")
        identity = " ".join(FLAGS).encode() + _cpu_identity() + sys.version.encode()
        _build(target, [path for path in files if path.suffix == ".cpp"], identity + headers)
    spec = importlib.util.spec_from_file_location("_ptxemu", target)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded

"""What a build needs from the machine: nvcc, ninja and, for some kernels, CUTLASS headers."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

USUAL_NVCC = Path("/usr/local/cuda/bin/nvcc")


class MissingToolError(RuntimeError):
    """A build is not possible here; one sentence says what is missing and how to get it."""


@dataclass(frozen=True)
class Toolchain:
    """Programs that were found.

    Attributes:
        nvcc, ninja: paths.
        compiler: nvcc's version and the host compiler's, as they print it.
        runtime: the folder of the CUDA runtime that libraries are linked with; None where it was not found.
    """

    nvcc: str
    ninja: str
    compiler: str
    runtime: Path | None


def find_nvcc() -> str:
    """nvcc of CUDA_HOME (or CUDA_PATH), of the PATH, or of /usr/local/cuda.

    Raises:
        MissingToolError: none of these has one.
    """
    looked = []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        # Lists with stray colons occur in the wild.
        for folder in filter(None, os.environ.get(variable, "").split(os.pathsep)):
            looked.append(f"{variable}={folder}")
            nvcc = Path(folder) / "bin" / "nvcc"
            if nvcc.is_file():
                return str(nvcc)
    on_path = shutil.which("nvcc")
    if on_path:
        return on_path
    if USUAL_NVCC.is_file():
        return str(USUAL_NVCC)
    looked += ["PATH", str(USUAL_NVCC)]
    raise MissingToolError(f"nvcc was not found (looked in {', '.join(looked)})")


def find_ninja() -> str:
    """ninja of the wheel or of the PATH.

    Raises:
        MissingToolError: there is none.
    """
    if importlib.util.find_spec("ninja") is not None:
        import ninja

        program = Path(ninja.BIN_DIR) / "ninja"
        if program.is_file():
            return str(program)
    on_path = shutil.which("ninja")
    if on_path:
        return on_path
    raise MissingToolError("ninja is not installed: pip install ninja")


def cutlass_include() -> Path:
    """The headers of the wheel nvidia-cutlass.

    Raises:
        MissingToolError: it is not installed, or came without headers.
    """
    spec = importlib.util.find_spec("cutlass_library")
    if spec is None or spec.origin is None:
        raise MissingToolError("the CUTLASS headers are not installed: pip install --no-deps nvidia-cutlass")
    include = Path(spec.origin).parent / "source" / "include"
    if not (include / "cutlass" / "cutlass.h").is_file():
        raise MissingToolError(f"the CUTLASS headers are not in {include}: pip install --no-deps nvidia-cutlass")
    return include


@functools.cache
def _version_text(program: str) -> str:
    try:
        result = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingToolError(f"{program} does not run: {error}") from error
    if result.returncode:
        raise MissingToolError(f"{program} does not run: exit status {result.returncode}")
    return result.stdout


@functools.cache
def _identity(nvcc: str) -> str:
    host = shutil.which(os.environ.get("NVCC_CCBIN") or "g++")
    return _version_text(nvcc) + (_version_text(host) if host else "")


def compiler_identity() -> str | None:
    """Versions of nvcc and of its host compiler; None where there is no nvcc."""
    try:
        return _identity(find_nvcc())
    except MissingToolError:
        return None


def forget() -> None:
    """Asks programs for their versions again."""
    _version_text.cache_clear()
    _identity.cache_clear()


def find() -> Toolchain:
    """Everything a build needs.

    Raises:
        MissingToolError: the first thing that is missing.
    """
    nvcc = find_nvcc()
    return Toolchain(nvcc, find_ninja(), _identity(nvcc), _runtime_folder(nvcc))


def _runtime_folder(nvcc: str) -> Path | None:
    for root in (Path(os.path.realpath(nvcc)).parent.parent, Path("/usr/local/cuda")):  # nvcc may be a script elsewhere
        for folder in (root / "lib64", root / "lib"):
            if any(folder.glob("libcudart.so.*")):
                return folder
    return None

"""The kernel libraries that are there, in the package or in the cache directory, keyed by content.

A library lies in a folder ``<variant>-<sources>-<tools>``: the first key hashes our sources, flags and architecture,
the second one the compiler and the CUTLASS headers. Where there is a compiler both must match; a machine without one
takes a library of the same sources whoever compiled it. A folder appears at once and whole (see `step`), so whatever
is there is complete.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkattn.build import sources, toolchain
from chunkattn.build.variants import Variant
from chunkattn.env import SETTINGS

PACKAGE_LIBRARIES = sources.PACKAGE / "_kernels"
MANIFEST = "manifest.json"
FLAGS = (
    *("-shared", "-std=c++17", "-O3", "-lineinfo", "-cudart", "shared", "--expt-relaxed-constexpr"),
    *("-Xcompiler", "-fPIC,-fvisibility=hidden", "-Xptxas", "-v"),
    # CuTe marks its functions host and device; nvcc warns of each.
    *("-diag-suppress", "20012,177,186"),
)


@dataclass(frozen=True)
class Library:
    """A built variant.

    Attributes:
        path: the shared library.
        place: "package" or "cache".
        manifest: what is known of the build: compiler, flags, resources by kernel.
    """

    path: Path
    place: str
    manifest: dict[str, Any]


@dataclass(frozen=True)
class Key:
    """What a variant's folder is called.

    Attributes:
        sources: hash of our sources, flags and architecture.
        tools: hash of compiler and CUTLASS headers; None where there is no compiler or no headers.
    """

    variant: str
    sources: str
    tools: str | None

    @property
    def folder(self) -> str:
        assert self.tools is not None
        return f"{self.variant}-{self.sources}-{self.tools}"


def cache_directory() -> Path:
    """Where libraries built on this machine are kept: CHUNKATTN_CACHE, or a folder of the user's cache."""
    if SETTINGS.cache is not None:
        return Path(SETTINGS.cache) / "kernels"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "chunkattn" / "kernels"


def compile_flags(variant: Variant) -> tuple[str, ...]:
    """Everything on nvcc's command line that the result depends on, folders aside. PTX goes in beside the machine code:
    newer GPUs need it, and tests run it."""
    arch = variant.arch
    target = ("-gencode", f"arch=compute_{arch},code=[sm_{arch},compute_{arch}]")
    return (*FLAGS, *target, *variant.defines())


def key_of(variant: Variant) -> Key:
    """The variant's key, from what its files contain now.

    Raises:
        FileNotFoundError: the package came without kernel sources.
    """
    root = sources.source_root()
    if root is None:
        raise FileNotFoundError("the package came without kernel sources (csrc)")
    folders = [*sources.include_folders(root)]
    cutlass = None
    if variant.cutlass:
        try:
            cutlass = toolchain.cutlass_include()
            folders.append(cutlass)
        except toolchain.MissingToolError:
            pass
    files = sources.reached_files(root / variant.source, folders)
    own = sources.digest(files, root.resolve(), compile_flags(variant))
    compiler = toolchain.compiler_identity()
    if compiler is None or (variant.cutlass and cutlass is None):
        return Key(variant.name, own, None)
    headers = sources.digest(files, cutlass.resolve(), [compiler]) if cutlass else sources.digest({}, root, [compiler])
    return Key(variant.name, own, headers)


def find(variant: Variant, folders: tuple[tuple[str, Path], ...] | None = None) -> Library | None:
    """The library of a variant, if the package or the cache has it."""
    key = key_of(variant)
    if folders is None:
        folders = (("package", PACKAGE_LIBRARIES), ("cache", cache_directory()))
    for place, folder in folders:
        if place == "cache" and key.tools is not None:
            candidates = [folder / key.folder]
        else:
            candidates = sorted(folder.glob(f"{_escaped(key.variant)}-{key.sources}-*"))
        for candidate in candidates:
            library = _read(candidate, place)
            if library is not None:
                return library
    return None


def _escaped(name: str) -> str:
    return re.sub(r"([\[*?])", r"[\1]", name)


def _read(folder: Path, place: str) -> Library | None:
    """The library in a folder; None where there is none, or it has lost bytes since it was published."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        path = folder / manifest["library"]
        if path.stat().st_size != manifest["bytes"]:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Library(path, place, manifest)

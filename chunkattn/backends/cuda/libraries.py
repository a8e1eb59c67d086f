"""Kernel libraries in this process: found or built, loaded, their launchers' addresses."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from chunkattn.build import builder, store
from chunkattn.build.variants import Variant


class LibraryError(RuntimeError):
    """No library of the wanted variants can be used; one sentence a variant says why."""


@functools.cache
def native() -> ModuleType | str:
    """The native core, which calls launchers, or why there is none."""
    try:
        from chunkattn import _native as core
    except ImportError as error:
        return f"the native core is not built ({error}); a C++17 compiler builds it, in a checkout by pip install -e"
    if not hasattr(core, "launch_abi"):
        return "the native core was built from other sources than this package; reinstall it"
    return core


@dataclass(frozen=True)
class Loaded:
    """A library that can be called.

    Attributes:
        variant: what it is an instantiation of.
        launcher: address of its launcher, for `chunkattn._native.launch_…`.
        handle: the loaded library.
        place: "package" or "cache".
    """

    variant: Variant
    launcher: int
    handle: ctypes.CDLL
    place: str

    def require(self, status: int) -> None:
        """Raises RuntimeError unless a launch returned 0."""
        if status:
            words = self.handle.chunkattn_error(status).decode("utf-8", "replace")
            raise RuntimeError(f"{self.variant.name}: {words}")


_loaded: dict[Variant, Loaded] = {}
_failed: dict[Variant, str] = {}  # a build that failed would fail again, after as long a wait


def available(variants: Sequence[Variant]) -> tuple[Variant, str] | str:
    """(the first variant that is there or can be built, where it is), or why there is none. Builds nothing."""
    reasons = []
    for variant in variants:
        if variant in _loaded:
            return variant, _loaded[variant].place
        if variant in _failed:
            reasons.append(_failed[variant])
            continue
        library = store.find(variant)
        if library is not None:
            return variant, library.place
        reason = builder.unbuildable_reason(variant)
        if reason is None:
            return variant, "built on first use"
        reasons.append(f"{variant.name} is neither in the package nor in {store.cache_directory()} and {reason}")
    return reasons[0]


def load(variants: Sequence[Variant]) -> Loaded:
    """The first of these variants that is there or can be built, loaded; the next one where one fails.

    Raises:
        LibraryError: none can be used.
    """
    while True:
        chosen = available(variants)
        if isinstance(chosen, str):
            raise LibraryError(chosen)
        variant = chosen[0]
        if variant in _loaded:
            return _loaded[variant]
        try:
            _loaded[variant] = _open(variant, builder.build([variant])[variant.name])
        except (builder.BuildError, LibraryError) as error:
            _failed[variant] = str(error)


def _open(variant: Variant, library: store.Library) -> Loaded:
    core = native()
    if isinstance(core, str):
        raise LibraryError(core)
    handle = _dlopen(variant, library)
    try:
        handle.chunkattn_abi.restype = ctypes.c_int64
        handle.chunkattn_error.restype = ctypes.c_char_p
        built_for = handle.chunkattn_abi()
        launcher = ctypes.cast(getattr(handle, variant.launcher), ctypes.c_void_p).value
    except AttributeError as error:
        raise LibraryError(f"{library.path}: expected a kernel library of chunkattn, got another ({error})") from error
    if built_for != core.launch_abi():
        raise LibraryError(
            f"{library.path}: expected a library for launch ABI {core.launch_abi()}, got one for {built_for}; "
            "rebuild the package and its kernels from the same sources"
        )
    assert launcher is not None
    return Loaded(variant, launcher, handle, library.place)


def _dlopen(variant: Variant, library: store.Library) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(library.path))
    except OSError as error:
        missing = re.search(r"(libcudart\.so\.(\d+))", str(error))
        if missing is None:
            raise LibraryError(f"{library.path} cannot be loaded: {error}") from error
        name, major = missing.groups()
    for candidate in _cuda_runtimes(name, major, library):
        try:
            ctypes.CDLL(str(candidate), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(library.path))
        except OSError:
            continue
    raise LibraryError(
        f"{variant.name} was built with CUDA {major}, whose runtime {name} is not installed here; install the toolkit "
        f"or nvidia-cuda-runtime of that version, or build with the toolkit of torch's version"
    )


def _cuda_runtimes(name: str, major: str, library: store.Library) -> Iterator[Path]:
    """Where a CUDA runtime may be: NVIDIA's wheels, then the toolkit that built the library."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for folder in (f"cu{major}/lib", "cuda_runtime/lib"):
            yield Path(place) / folder / name
    runtime = library.manifest.get("runtime")
    if runtime:
        yield Path(runtime) / name

"""The stand-in CUDA runtime: libraries built by nvcc launch into the emulator through their own host code."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .launch import Buffer, PtxModule
from .native import SOURCE, cache_directory
from .ptx_cache import nvcc_path
from .report import KernelError

if TYPE_CHECKING:
    from .session import Session

_LAUNCH_FAILURE = 719  # cudaErrorLaunchFailure
_FATBIN_MAGIC = 0xBA55ED50
_PTX_ENTRY = 1


class _LaunchRequest(ctypes.Structure):
    _fields_ = (
        ("module", ctypes.c_int),
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("cluster", ctypes.c_uint * 3),
        ("dynamic_shared", ctypes.c_uint),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
    )


_LaunchCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LaunchRequest))


def _decompress(data: bytes, size: int) -> bytes:
    """A zstd frame, with the system's libzstd."""
    name = ctypes.util.find_library("zstd")
    if name is None:
        raise RuntimeError("compressed PTX and no libzstd: build the library with nvcc -no-compress")
    zstd = ctypes.CDLL(name)
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    buffer = ctypes.create_string_buffer(size)
    written = zstd.ZSTD_decompress(buffer, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data)))
    if written != size:
        raise RuntimeError("damaged PTX in a fat binary")
    return buffer.raw


def ptx_of_fatbin(address: int) -> dict[int, str]:
    """PTX texts of a fat binary in memory, by architecture number (80, 90).

    Raises:
        RuntimeError: no fat binary is there.
    """
    magic = ctypes.c_uint32.from_address(address).value
    if magic != _FATBIN_MAGIC:
        raise RuntimeError(f"no fat binary at {address:#x}")
    header = ctypes.c_uint16.from_address(address + 6).value
    end = address + header + ctypes.c_uint64.from_address(address + 8).value
    at = address + header
    texts: dict[int, str] = {}
    while at < end:
        kind = ctypes.c_uint16.from_address(at).value
        entry_header = ctypes.c_uint32.from_address(at + 4).value
        payload = ctypes.c_uint64.from_address(at + 8).value
        compressed = ctypes.c_uint32.from_address(at + 16).value
        arch = ctypes.c_uint32.from_address(at + 28).value
        size = ctypes.c_uint64.from_address(at + 56).value
        if kind == _PTX_ENTRY:
            data = ctypes.string_at(at + entry_header, compressed or payload)
            if compressed:
                data = _decompress(data, size)
            texts[arch] = data.split(b"\0")[0].decode()
        at += entry_header + payload
    return texts


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The stand-in runtime, loaded for everybody; None without the CUDA headers."""
    nvcc = nvcc_path()
    if nvcc is None:
        return None
    include = Path(os.path.realpath(nvcc)).parent.parent / "include"
    if not (include / "cuda_runtime_api.h").exists():
        include = Path("/usr/local/cuda/include")
    if not (include / "cuda_runtime_api.h").exists():
        return None
    sources = [SOURCE / name for name in ("fake_cudart.cpp", "tensor_map_encoder.h", "tensor_map.h")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    target = cache_directory() / f"fake_cudart-{digest}" / "libcudart.so.13"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            output = Path(work) / target.name
            command = ["g++", "-std=c++20", "-O2", "-fPIC", "-shared", f"-I{include}", str(sources[0])]
            command += ["-Wl,-soname,libcudart.so.13", "-o", str(output)]
            subprocess.run(command, check=True, capture_output=True)
            os.replace(output, target)
    library = ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)
    library.emu_module_fatbin.restype = ctypes.c_void_p
    return library


def available() -> bool:
    return _library() is not None


class CudaLaunches:
    """Turns launches of host code into launches of a session."""

    def __init__(self, session: Session, library: ctypes.CDLL):
        self.session = session
        self.library = library
        self.error: BaseException | None = None
        self._modules: dict[tuple[int, int], PtxModule] = {}

    def module(self, number: int) -> PtxModule:
        """The PTX of a registered module for the session's architecture, or the next lower one."""
        key = (number, self.session.arch)
        if key not in self._modules:
            texts = ptx_of_fatbin(self.library.emu_module_fatbin(number))
            usable = [arch for arch in texts if arch <= self.session.arch]
            if not usable:
                raise RuntimeError(f"no PTX for sm_{self.session.arch} in the library (it has {sorted(texts)})")
            self._modules[key] = PtxModule(texts[max(usable)])
        return self._modules[key]

    def allocated(self) -> list[Buffer]:
        """Live blocks of cudaMalloc."""
        count = self.library.emu_allocations(None, 0)
        pairs = (ctypes.c_uint64 * (2 * max(count, 1)))()
        self.library.emu_allocations(pairs, count)
        return [Buffer(pairs[2 * k], pairs[2 * k + 1], f"cudaMalloc #{k}") for k in range(count)]

    def on_launch(self, request: Any) -> int:
        try:
            wanted = request.contents
            module = self.session.substitute or self.module(wanted.module)
            kernel = wanted.kernel.decode()
            layout = module.parameters(kernel)
            values = bytearray(layout[-1][0] + layout[-1][1] if layout else 0)
            for (offset, size), argument in zip(layout, wanted.arguments if layout else ()):
                values[offset : offset + size] = ctypes.string_at(argument, size)
            self.session.launch(
                module,
                kernel,
                list(wanted.grid),
                list(wanted.block),
                bytes(values),
                wanted.dynamic_shared,
                list(wanted.cluster),
                self.allocated(),
            )
        except KernelError:
            return _LAUNCH_FAILURE  # kept in session.launches, raised when the block ends
        except BaseException as error:  # an exception must not cross the C++ frames
            self.error = error
            return _LAUNCH_FAILURE
        return 0


@contextlib.contextmanager
def installed(session: Session) -> Iterator[None]:
    """Directs launches of the stand-in runtime to the session; does nothing without the CUDA headers."""
    library = _library()
    if library is None:
        yield
        return
    launches = CudaLaunches(session, library)
    callback = _LaunchCallback(launches.on_launch)
    library.emu_set_device(session.arch // 10, session.arch % 10, session.multiprocessors)
    library.emu_set_launch_callback(callback)
    try:
        yield
    finally:
        library.emu_set_launch_callback(ctypes.cast(None, _LaunchCallback))
    if launches.error is not None:
        raise launches.error

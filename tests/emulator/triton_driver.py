"""A Triton driver whose device is the emulator: `kernel[grid](...)` works on CPU tensors, without a GPU."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from . import native
from .launch import Buffer, PtxModule, without_known_gaps

if TYPE_CHECKING:
    from .session import Session

MAX_SHARED = {80: 163 * 1024, 90: 227 * 1024}


def available() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def version() -> tuple[int, int]:
    """(major, minor) of Triton."""
    major, minor = importlib.metadata.version("triton").split(".")[:2]
    return int(major), int(minor)


@functools.lru_cache(maxsize=256)
def _parsed(ptx: str) -> PtxModule:
    return PtxModule(ptx)


def _aligned_scratch(size: int, alignment: int) -> torch.Tensor:
    storage = torch.zeros(size + alignment, dtype=torch.uint8)
    offset = -storage.data_ptr() % alignment
    return storage[offset : offset + size]


# Element types of a device-side descriptor to CUtensorMapDataType: f32.ftz, f64 and bf16 are numbered differently.
_HOST_ELEMENT_TYPE = {8: 10, 9: 8, 10: 9}
_TF32 = 11


def _tensor_map(descriptor: Any, metadata: dict[str, Any]) -> bytes:
    """The tensor map of a host-side TensorDescriptor."""
    if metadata.get("is_im2col") or metadata.get("fp4_padded"):
        raise NotImplementedError("the emulator has no im2col tensor maps and no padded 4-bit ones")
    element_bytes = metadata["elem_size"]
    shape, strides = list(descriptor.shape), list(descriptor.strides)
    element_type = _HOST_ELEMENT_TYPE.get(metadata["elem_type"], metadata["elem_type"])
    return native.module().encode_tensor_map(
        _TF32 if getattr(descriptor, "round_f32_to_tf32", False) else element_type,
        descriptor.base.data_ptr(),
        shape[::-1],
        [stride * element_bytes for stride in strides[-2::-1]],
        list(metadata["block_size"])[::-1],
        metadata["swizzle"],
        getattr(descriptor, "padding", "zero") == "nan",
    )


class EmulatorLauncher:
    """What Triton calls to launch a compiled kernel; made once a kernel."""

    def __init__(self, source: Any, metadata: Any):
        self.metadata = metadata
        self.signature = list(source.signature.values())
        self.names = list(source.signature)
        self.descriptor_metadata = list(getattr(metadata, "tensordesc_meta", None) or [])

    def __call__(self, grid_x: int, grid_y: int, grid_z: int, stream: Any, function: Any, *rest: Any) -> None:
        _packed, launch_metadata, enter_hook, exit_hook, *arguments = rest
        current, module, kernel = function
        session = current.session()
        values: list[Any] = []
        extra: list[Buffer] = []
        descriptors = iter(self.descriptor_metadata)
        for name, kind, argument in zip(self.names, self.signature, arguments):
            self._flatten(name, kind, argument, values, extra, descriptors)
        clusters = getattr(self.metadata, "num_ctas", 1)
        for what in ("global_scratch", "profile_scratch"):
            size = getattr(self.metadata, f"{what}_size", 0) * grid_x * grid_y * grid_z * clusters
            scratch = _aligned_scratch(size, getattr(self.metadata, f"{what}_align", 1)) if size else None
            values.append(0 if scratch is None else scratch)
            if scratch is not None:
                extra.append(Buffer.of(scratch, what.replace("_", " ")))
        layout = module.parameters(kernel)
        if enter_hook is not None:
            enter_hook(launch_metadata)
        session.launch(
            module,
            kernel,
            (grid_x * clusters, grid_y, grid_z),
            (32 * self.metadata.num_warps, 1, 1),
            values[: len(layout)],
            self.metadata.shared,
            (clusters, 1, 1),
            extra,
            without_known_gaps(session.options, version()),
        )
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _flatten(
        self, name: str, kind: Any, argument: Any, values: list[Any], extra: list[Buffer], descriptors: Iterator[Any]
    ) -> None:
        """Appends the kernel parameters that one argument of the Triton function becomes."""
        if isinstance(kind, tuple):
            for k, (inner_kind, inner) in enumerate(zip(kind, argument)):
                self._flatten(f"{name}[{k}]", inner_kind, inner, values, extra, descriptors)
        elif kind == "constexpr":
            return
        elif isinstance(kind, str) and kind.startswith("tensordesc"):
            metadata = next(descriptors, None)
            extra.append(Buffer.of(argument.base, name))
            if metadata is None:  # a target without TMA: the kernel computes the addresses itself
                values.extend([argument.base, *argument.shape, *argument.strides])
                values.append(getattr(argument, "padding", "zero") == "nan")
                if hasattr(argument, "round_f32_to_tf32"):  # Triton 3.7 and newer
                    values.append(argument.round_f32_to_tf32)
            else:
                values.append(_tensor_map(argument, metadata))
            values.extend([*argument.shape, *argument.strides])
        elif isinstance(argument, torch.Tensor):
            extra.append(Buffer.of(argument, name))
            values.append(argument)
        elif argument is None:
            values.append(0)
        elif hasattr(argument, "data_ptr"):
            values.append(argument.data_ptr())
        elif isinstance(kind, str) and kind.startswith("fp"):
            values.append(float(argument))
        else:
            values.append(int(argument))


class _EmulatorUtils:
    """The part of CudaUtils that Triton's runtime calls."""

    def __init__(self, driver: EmulatorDriver):
        self._driver = driver

    def get_device_properties(self, _device: int) -> dict[str, int]:
        return {
            "max_shared_mem": MAX_SHARED[self._driver.session.arch],
            "max_num_regs": 65536,
            "multiprocessor_count": self._driver.session.multiprocessors,
            "warpSize": 32,
            "sm_clock_rate": 1,
            "mem_clock_rate": 1,
            "mem_bus_width": 1,
        }

    def unload_module(self, _module: Any) -> None:
        return

    def load_binary(self, name: str, _kernel: bytes, _shared: int, _device: int) -> tuple[Any, Any, int, int, int]:
        module = _parsed(self._driver.pending_ptx)
        return module, (self._driver.current, module, name), 0, 0, 1024


class _CurrentSession:
    """Launches of a cached kernel go to whichever session is active then."""

    def __init__(self) -> None:
        self.active: Session | None = None

    def session(self) -> Session:
        if self.active is None:
            raise RuntimeError("a kernel compiled for the emulator was launched outside emulated()")
        return self.active


_current = _CurrentSession()


class EmulatorDriver:
    """Stands for one device a capability, so that Triton's per-device caches keep architectures apart."""

    def __init__(self, session: Session):
        self.session = session
        self.current = _current
        self.pending_ptx = ""
        self.utils = _EmulatorUtils(self)
        self.launcher_cls = EmulatorLauncher

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_device(self) -> int:
        return self.session.arch

    def set_current_device(self, _device: int) -> None:
        return

    def get_current_stream(self, _device: int | None = None) -> int:
        return 0

    def get_device_capability(self, _device: int | None = None) -> tuple[int, int]:
        return self.session.arch // 10, self.session.arch % 10

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.session.arch, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cuda

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind

    def get_benchmarker(self) -> Callable[..., Any]:
        """Autotuning has no clock here: the first configuration wins."""

        def no_clock(call: Callable[[], Any], quantiles: Any = None, **_: Any) -> Any:
            return [1.0] * len(quantiles) if quantiles else 1.0

        return no_clock


@contextlib.contextmanager
def _compiling_to_ptx() -> Iterator[None]:
    """Compilation ends with the PTX: nothing here runs what ptxas makes of it, and it takes half of the time.

    Such kernels go by a name of their own in Triton's cache, so that no GPU is given one.
    """
    from triton.backends.nvidia.compiler import CUDABackend

    add_stages, name = CUDABackend.add_stages, CUDABackend.hash

    def add_stages_to_ptx(backend: Any, stages: dict[str, Any], *arguments: Any) -> None:
        add_stages(backend, stages, *arguments)
        stages["cubin"] = lambda *_: b""

    CUDABackend.add_stages = add_stages_to_ptx
    CUDABackend.hash = lambda backend: f"emulator-{backend.target.arch}"
    try:
        yield
    finally:
        CUDABackend.add_stages, CUDABackend.hash = add_stages, name


@contextlib.contextmanager
def installed(session: Session) -> Iterator[None]:
    """Makes the emulator Triton's active driver; does nothing where Triton is not installed."""
    if not available():
        yield
        return
    import triton
    from triton.compiler import CompiledKernel

    driver = EmulatorDriver(session)
    config = triton.runtime.driver
    before_active = config.__dict__.get("_active")
    before_session = _current.active
    original = CompiledKernel._init_handles

    def init_handles(kernel: Any) -> None:
        driver.pending_ptx = kernel.asm["ptx"]
        original(kernel)
        # Newer versions unload a module when its kernel is collected, through whichever driver is active then. One
        # that another process loaded is left alone, and so is one of no process.
        if hasattr(kernel, "_module_pid"):
            kernel._module_pid = None

    CompiledKernel._init_handles = init_handles
    _current.active = session
    config.set_active(driver)
    try:
        with _compiling_to_ptx():
            yield
    finally:
        CompiledKernel._init_handles = original
        _current.active = before_session
        config._active = before_active

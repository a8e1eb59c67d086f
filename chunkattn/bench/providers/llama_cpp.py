"""llama.cpp's CPU flash attention: ggml_flash_attn_ext, called in ggml's own libraries through ctypes.

Requests with equally many query tokens share a graph, as llama.cpp's streams do: K and V a run of tokens a request,
padded to the longest and to 256, with a mask. The cache is fp16, llama.cpp's own choice, and fp32 for fp32 cases.
Queries and results of ggml are fp32; turning ours into that and back is inside the timed call.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers.base import Call
from chunkattn.bench.providers.groups import Rows, rows_of, token_slots
from chunkattn.env import SETTINGS
from chunkattn.testing import AttentionInputs

LABEL = "llama.cpp"
INSTALL = "pip install llama-cpp-python   # builds llama.cpp: a C++ compiler and some minutes"
DEVICES = ("cpu",)

_LIBRARIES = ("libggml-base.so", "libggml-cpu.so")
_F32, _F16 = 0, 1  # enum ggml_type
_KV_PADDING = 256  # of llama.cpp's KV cache
_SLACK_BYTES = 1 << 20  # ggml's own records of a graph's tensors


class _InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class _Plan(ctypes.Structure):
    """struct ggml_cplan; the caller gives the work buffer, versions differ in what comes after it."""

    _fields_ = (("work_size", ctypes.c_size_t), ("work_data", ctypes.c_void_p), ("rest", ctypes.c_byte * 112))


def folder() -> Path | str:
    """Where ggml's libraries are, or why there are none: CHUNKATTN_GGML_LIB, or the installed llama-cpp-python's."""
    if SETTINGS.ggml_library:
        place = Path(SETTINGS.ggml_library)
        return place if (place / _LIBRARIES[1]).is_file() else f"CHUNKATTN_GGML_LIB: no {_LIBRARIES[1]} in {place}"
    try:
        place = Path(str(metadata.distribution("llama-cpp-python").locate_file("llama_cpp/lib")))
    except metadata.PackageNotFoundError:
        return "llama-cpp-python is not installed"
    return place if (place / _LIBRARIES[1]).is_file() else f"llama-cpp-python holds no {_LIBRARIES[1]}"


@functools.cache
def _load() -> tuple[Any, Any] | str:
    """(base, cpu) with the signatures set, or why they do not load."""
    place = folder()
    if isinstance(place, str):
        return place
    try:
        base, cpu = (ctypes.CDLL(str(place / name), mode=ctypes.RTLD_GLOBAL) for name in _LIBRARIES)
        pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        real = ctypes.c_float
        for library, name, result, arguments in (
            (base, "ggml_init", pointer, [_InitParams]),
            (base, "ggml_free", None, [pointer]),
            (base, "ggml_new_tensor_4d", pointer, [pointer, number, size, size, size, size]),
            (base, "ggml_permute", pointer, [pointer, pointer, number, number, number, number]),
            (base, "ggml_get_data", pointer, [pointer]),
            (base, "ggml_flash_attn_ext", pointer, [pointer] * 5 + [real] * 3),
            (base, "ggml_flash_attn_ext_add_sinks", None, [pointer, pointer]),
            (base, "ggml_new_graph", pointer, [pointer]),
            (base, "ggml_build_forward_expand", None, [pointer, pointer]),
            (cpu, "ggml_cpu_init", None, []),
            (cpu, "ggml_graph_plan", _Plan, [pointer, number, pointer]),
            (cpu, "ggml_graph_compute", number, [pointer, pointer]),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        cpu.ggml_cpu_init()
    except (OSError, AttributeError) as error:
        return f"ggml does not load here: {str(error).splitlines()[0]}"
    return base, cpu


def version() -> str:
    """ggml's own version, "" if it is missing or does not say."""
    loaded = _load()
    if isinstance(loaded, str) or not hasattr(loaded[0], "ggml_version"):
        return ""
    loaded[0].ggml_version.restype = ctypes.c_char_p
    return str(loaded[0].ggml_version().decode())


def missing() -> str | None:
    loaded = _load()
    return loaded if isinstance(loaded, str) else None


def refuses(case: BenchCase) -> str | None:
    if case.kv_dtype != case.dtype:
        return "this adapter does no quantised cache"
    return None if case.dtype in ("bf16", "fp16", "fp32") else f"ggml's attention has no {case.dtype}"


class _Graph:
    """One ggml graph: attention of requests with equally many query tokens.

    Args:
        inputs: the step.
        rows: the requests and their query rows.
    """

    def __init__(self, inputs: AttentionInputs, rows: Rows) -> None:
        loaded = _load()
        assert not isinstance(loaded, str)
        self._base, self._cpu = loaded
        self.rows, case, count = rows, inputs.case, len(rows.requests)
        q_len = case.q_lens[rows.requests[0]]
        longest = max(case.kv_lens[r] for r in rows.requests)
        keys = -(-longest // _KV_PADDING) * _KV_PADDING
        kind = _F32 if inputs.q.dtype == torch.float32 else _F16
        kv_bytes = (4 if kind == _F32 else 2) * count * keys * case.num_kv_heads * (case.head_dim + case.value_dim)
        row_bytes = 4 * count * q_len * case.num_q_heads * (case.head_dim + case.value_dim)
        memory = kv_bytes + row_bytes + 2 * count * q_len * keys + 4 * case.num_q_heads + _SLACK_BYTES
        self._context = self._base.ggml_init(_InitParams(memory, None, False))
        weakref.finalize(self, self._base.ggml_free, self._context)
        q, self.q = self._tensor(_F32, case.head_dim, case.num_q_heads, q_len, count)
        k, k_data = self._tensor(kind, case.head_dim, case.num_kv_heads, keys, count)
        v, v_data = self._tensor(kind, case.value_dim, case.num_kv_heads, keys, count)
        mask, mask_data = self._tensor(_F16, keys, q_len, 1, count)
        k_data.zero_(), v_data.zero_()
        for place, request in enumerate(rows.requests):
            slots = token_slots(inputs, request)
            k_data[place, : len(slots)] = inputs.k_cache.flatten(0, 1)[slots]
            v_data[place, : len(slots)] = inputs.v_cache.flatten(0, 1)[slots]
            mask_data[place, 0] = _mask(q_len, case.kv_lens[request], keys, case.window[0])
        scale = case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale
        q, k, v = (self._base.ggml_permute(self._context, one, 0, 2, 1, 3) for one in (q, k, v))
        result = self._base.ggml_flash_attn_ext(self._context, q, k, v, mask, scale, 0.0, case.softcap)
        if inputs.sinks is not None:
            sinks, sinks_data = self._tensor(_F32, case.num_q_heads, 1, 1, 1)
            sinks_data.flatten().copy_(inputs.sinks)
            self._base.ggml_flash_attn_ext_add_sinks(result, sinks)
        self.out = self._view(result, torch.float32, (count * q_len, case.num_q_heads, case.value_dim))
        self.q = self.q.view(count * q_len, case.num_q_heads, case.head_dim)
        self._graph = self._base.ggml_new_graph(self._context)
        self._base.ggml_build_forward_expand(self._graph, result)
        self._plan = self._cpu.ggml_graph_plan(self._graph, torch.get_num_threads(), None)
        self._work = torch.empty(self._plan.work_size + 64, dtype=torch.uint8)
        self._plan.work_data = self._work.data_ptr()

    def compute(self) -> None:
        """Runs the graph on what `q` holds; `out` has the result.

        Raises:
            RuntimeError: ggml reports a failure.
        """
        status = self._cpu.ggml_graph_compute(self._graph, ctypes.byref(self._plan))
        if status:
            raise RuntimeError(f"ggml_graph_compute returned {status}")

    def _tensor(self, kind: int, *sizes: int) -> tuple[int, Tensor]:
        """A new ggml tensor of sizes from the inside out, and a torch view of its memory, sizes from the outside in."""
        made = self._base.ggml_new_tensor_4d(self._context, kind, *sizes)
        return made, self._view(made, torch.float32 if kind == _F32 else torch.float16, sizes[::-1])

    def _view(self, tensor: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        flat = torch.empty(shape, dtype=dtype, device="meta")
        memory = (ctypes.c_byte * (flat.numel() * flat.element_size())).from_address(self._base.ggml_get_data(tensor))
        return torch.frombuffer(memory, dtype=dtype).view(shape)


def _mask(q_len: int, kv_len: int, keys: int, left: int) -> Tensor:
    """fp16 [q_len, keys]: 0 where a query token sees a key, minus infinity elsewhere."""
    position = torch.arange(kv_len - q_len, kv_len)[:, None]
    key = torch.arange(keys)[None, :]
    seen = key <= position
    if left >= 0:
        seen &= key >= position - left
    return torch.where(seen, 0.0, float("-inf")).half()


def prepare(inputs: AttentionInputs) -> Call:
    case = inputs.case
    lengths = dict.fromkeys(q_len for q_len in case.q_lens if q_len)
    graphs = [_Graph(inputs, rows_of(inputs, [r for r, q in enumerate(case.q_lens) if q == n])) for n in lengths]
    out = torch.empty(*inputs.q.shape[:2], case.value_dim, dtype=inputs.q.dtype)

    def run() -> Tensor:
        for graph in graphs:
            rows = graph.rows
            graph.q.copy_(rows.of(inputs.q))
            graph.compute()
            if rows.span is None:
                out[rows.index] = graph.out.to(out.dtype)
            else:
                out[rows.span[0] : rows.span[1]] = graph.out
        return out

    return run

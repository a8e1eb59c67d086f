"""The tensors that a launch may touch: those its callers can name.

A launcher passes raw addresses. Which memory they belong to, and what it is called in a message, is found in the
local variables of the Python functions that led to the launch. Arguments of an op of the library (`chunkattn.args`)
are called by their names there, and what the op's schema does not declare as written is read-only.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from .launch import Buffer

_MAX_DEPTH = 4
_SKIPPED_MODULES = ("torch", "triton", "_pytest", "pytest", "pluggy", "importlib")
_OWN_MODULES = tuple(
    f"{__package__}.{name}" for name in ("launch", "session", "live_tensors", "triton_driver", "cuda_runtime", "plugin")
)


def _tensors_of(value: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if depth == 0 or isinstance(value, (str, bytes, int, float, bool, type(None), type)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        items = [(f"{name}[{key!r}]", item) for key, item in list(value.items())[:256]]
    elif hasattr(value, "_fields") and isinstance(value, tuple):
        items = [(f"{name}.{field}", item) for field, item in zip(value._fields, value)]
    elif isinstance(value, (list, tuple)):
        items = [(f"{name}[{k}]", item) for k, item in enumerate(value[:256])]
    elif dataclasses.is_dataclass(value) or type(value).__module__.split(".")[0] not in _SKIPPED_MODULES:
        attributes = getattr(value, "__dict__", None)
        items = [(f"{name}.{key}", item) for key, item in list(attributes.items())[:256]] if attributes else []
        if dataclasses.is_dataclass(value) and not attributes:
            items = [(f"{name}.{f.name}", getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    else:
        return
    for item_name, item in items:
        yield from _tensors_of(item, item_name, depth - 1, seen)


def _frames(start: FrameType | None) -> Iterator[FrameType]:
    while start is not None:
        module = start.f_globals.get("__name__", "")
        if module.split(".")[0] not in _SKIPPED_MODULES:
            yield start
        start = start.f_back


def storage_buffer(tensor: torch.Tensor, name: str) -> Buffer:
    """The whole storage behind a tensor: a view's launcher may address all of it."""
    storage = tensor.untyped_storage()
    return Buffer(storage.data_ptr(), storage.nbytes(), name)


@functools.cache
def _written_arguments(fields: tuple[str, ...]) -> frozenset[str] | None:
    """The arguments that the op with these ones writes; None if no op of the library has them."""
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("chunkattn::"):
            arguments = torch._C._get_schema(name, "").arguments
            if tuple(argument.name for argument in arguments) == fields:
                return frozenset(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
    return None


def _op_arguments(value: Any) -> Iterator[Buffer]:
    """The tensors of an argument tuple of one of the library's ops."""
    fields = getattr(type(value), "_fields", None)
    if fields is None or type(value).__module__ != "chunkattn.args":
        return
    written = _written_arguments(fields)
    for name, tensor in zip(fields, value):
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and tensor.numel():
            writable = written is None or name in written
            yield dataclasses.replace(storage_buffer(tensor, name), writable=writable)


def buffers_in_scope() -> list[Buffer]:
    """Buffers of all tensors that the calling functions hold.

    Arguments of the library's ops come first; otherwise the innermost name of a memory wins.
    """
    arguments: dict[int, Buffer] = {}
    found: dict[int, Buffer] = {}
    seen: set[int] = set()
    for frame in _frames(sys._getframe(1)):
        if frame.f_globals.get("__name__") in _OWN_MODULES:
            continue
        for name, value in list(frame.f_locals.items()):
            for buffer in _op_arguments(value):
                known = arguments.get(buffer.address)
                if known is None:
                    arguments[buffer.address] = buffer
                elif buffer.name != known.name or buffer.writable != known.writable:
                    names = known.name.split("/")
                    label = known.name if buffer.name in names else f"{known.name}/{buffer.name}"
                    arguments[buffer.address] = dataclasses.replace(
                        known, name=label, writable=known.writable or buffer.writable
                    )
            for label, tensor in _tensors_of(value, name, _MAX_DEPTH, seen):
                if tensor.device.type != "cpu" or tensor.layout != torch.strided:
                    continue
                buffer = storage_buffer(tensor, label)
                if buffer.size and buffer.address not in found:
                    found[buffer.address] = buffer
    return [*arguments.values(), *(buffer for buffer in found.values() if buffer.address not in arguments)]

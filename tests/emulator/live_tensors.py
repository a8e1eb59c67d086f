"""The tensors that a launch may touch: those its callers can name.

A launcher passes raw addresses. Which memory they belong to, and what it is called in a message, is found in the
local variables of the Python functions that led to the launch.
"""

from __future__ import annotations

import dataclasses
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


def buffers_in_scope() -> list[Buffer]:
    """Buffers of all tensors that the calling functions hold; the innermost name of a memory wins."""
    found: dict[int, Buffer] = {}
    seen: set[int] = set()
    for frame in _frames(sys._getframe(1)):
        if frame.f_globals.get("__name__") in _OWN_MODULES:
            continue
        for name, value in list(frame.f_locals.items()):
            for label, tensor in _tensors_of(value, name, _MAX_DEPTH, seen):
                if tensor.device.type != "cpu" or tensor.layout != torch.strided:
                    continue
                buffer = storage_buffer(tensor, label)
                if buffer.size and buffer.address not in found:
                    found[buffer.address] = buffer
    return list(found.values())

"""Checks on one tensor, whatever its part in a call."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn.validate.sentences import bad, bad_dtype, bad_shape

INT32 = torch.int32
FP32 = torch.float32


def tensors(**named: object) -> None:
    """These arguments of a public function must be tensors."""
    for arg, value in named.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{arg}: expected a tensor, got {type(value).__name__}")


def dense(**named: object) -> None:
    """What of these is a tensor must be a plain one: elements at strides, not sparse, nested or quantised."""
    for arg, value in named.items():
        if isinstance(value, Tensor) and (value.layout != torch.strided or value.is_quantized or value.is_nested):
            kind = "nested" if value.is_nested else "quantised" if value.is_quantized else str(value.layout)
            bad(arg, "a dense tensor", f"one that is {kind}")


def ranks(**named: tuple[Tensor, int]) -> None:
    """These tensors must have that many dimensions."""
    for arg, (value, rank) in named.items():
        dense(**{arg: value})
        if value.dim() != rank:
            bad_shape(arg, value, f"{rank} dimensions")


def on_device(arg: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        bad(arg, f"a tensor on {device}, the device of its companions", f"one on {tensor.device}")


def contiguous_last(arg: str, tensor: Tensor) -> None:
    if tensor.stride(-1) != 1 and tensor.shape[-1] != 1:
        bad(arg, "a contiguous last dim (stride 1)", f"stride {tensor.stride(-1)}")


def written(**named: Tensor | None) -> None:
    """These arguments are written: no element may stand in two places."""
    for arg, tensor in named.items():
        if tensor is None or 0 not in tensor.stride():
            continue
        for size, stride in zip(tensor.shape, tensor.stride()):
            if stride == 0 and size > 1:
                bad(arg, "a tensor whose elements lie apart, since it is written", f"stride 0 in a dim of {size}")


def no_gradients(**named: Tensor | None) -> None:
    """The operators have no backward pass; a gradient that silently stops here would be worse than an error."""
    if not torch.is_grad_enabled():
        return
    for arg, tensor in named.items():
        if tensor is not None and tensor.requires_grad:
            bad(arg, "a tensor that needs no gradient (wrap the call in torch.no_grad())", "one that does")


def fp32_vector(arg: str, tensor: Tensor, shapes: tuple[tuple[int, ...], ...], device: torch.device) -> None:
    if tensor.dtype != FP32:
        bad_dtype(arg, tensor, FP32)
    if tuple(tensor.shape) not in shapes:
        bad_shape(arg, tensor, " or ".join(str(list(shape)) for shape in shapes))
    on_device(arg, tensor, device)

"""A check on where tensors are to be made."""

from __future__ import annotations

import torch


def check_device(device: torch.device | str | None) -> torch.device:
    """The device by this name (None: torch's default), on which tensors can be made on this machine.

    Raises:
        TypeError: no device and no name of one.
        ValueError: an unknown or absent device.
    """
    if not (device is None or isinstance(device, torch.device | str | int)) or isinstance(device, bool):
        raise TypeError(f"device: expected a torch.device or its name, got {type(device).__name__}")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError):  # torch's own words are long, or an assertion's
        raise ValueError(f"device: expected one that torch finds on this machine, got {str(device)!r}") from None

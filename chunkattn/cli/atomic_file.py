"""Output files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Writes beside the target and renames; whoever looks sees the old file or the new one.

    Args:
        path: the target; its directory is made. A link stays one, and a pipe or a device is written to.
        content: bytes, or text that is written as UTF-8.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def require_writable(path: Path) -> None:
    """For before work that takes long: the file can be made, as far as that can be seen; nothing is left behind.

    Raises:
        OSError: it cannot.
    """
    path = path.resolve()
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        return
    try:
        with tempfile.TemporaryFile(dir=next(folder for folder in path.parents if folder.exists())):
            pass
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

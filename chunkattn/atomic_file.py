"""Files that are there whole or not at all: what commands write, and the table of measured settings."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

SCRATCH = ".new"  # how the name of a file ends that is still being written; a killed writer leaves it


def write_atomically(path: Path, content: bytes | str) -> None:
    """Writes beside the target, flushes to the disk and renames; whoever looks sees the old file or the new one.

    Args:
        path: the target; its directory is made. A link stays one, a replaced file's mode stays, and a pipe or a device
            is written to.
        content: bytes, or text that is written as UTF-8.

    Raises:
        OSError: the file cannot be written; the old one is as it was.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=SCRATCH)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
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

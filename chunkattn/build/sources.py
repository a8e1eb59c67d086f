"""Where the kernel sources are, which files a variant is made of, and what they contain."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^">]+)[">]', re.MULTILINE)


@functools.cache
def source_root() -> Path | None:
    """The csrc folder: inside the installed package, or beside it in a checkout."""
    for candidate in (PACKAGE / "csrc", PACKAGE.parent / "csrc"):
        if (candidate / "variants.toml").is_file():
            return candidate
    return None


def include_folders(root: Path) -> tuple[Path, Path]:
    """What `#include` is relative to in our sources."""
    return root, root / "include"


def reached_files(source: Path, folders: Sequence[Path]) -> dict[Path, bytes]:
    """The file and everything it includes, directly or not, that lies in one of the folders or beside its includer,
    with a hash of what each contains.

    Time stamps are not looked at, nor is conditional compilation: a file too many only means a build too many.
    """
    found: dict[Path, bytes] = {}
    waiting = [source.resolve()]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        text = path.read_bytes()
        found[path] = hashlib.sha256(text).digest()
        for name in _INCLUDE.findall(text):
            for folder in (path.parent, *folders):
                candidate = folder / name.decode("utf-8", "replace")
                if candidate.is_file():
                    waiting.append(candidate.resolve())
                    break
    return found


def digest(files: Mapping[Path, bytes], base: Path, words: Sequence[str] = ()) -> str:
    """A hash of what files below `base` contain, of their places there, and of some words."""
    total = hashlib.sha256("\0".join(words).encode())
    for path in sorted(files):
        if path.is_relative_to(base):
            total.update(f"\0{path.relative_to(base)}\0".encode() + files[path])
    return total.hexdigest()[:16]

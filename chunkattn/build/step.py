"""Builds one variant: lock, compile, judge, publish. ninja runs this file as a script, outside the package.

The job is a JSON file: command (the compiler's, with OUTPUT in place of the result's path), library, folder (where to
publish), work (a scratch folder on the same file system), lock, slots, num_slots, manifest.

Whoever kills this process at any moment leaves nothing but scratch: locks are the kernel's (flock), and the finished
folder appears by one rename.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OUTPUT = "@OUTPUT@"
MANIFEST = "manifest.json"
_POLL_SECONDS = 0.1


class RefusedError(Exception):
    """The compiler, or what ptxas says of its output, does not let the library through."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on a file, which stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def slot(folder: Path, count: int) -> Iterator[None]:
    """Holds one of `count` slots, which all builds that share the folder divide among them: compilers are large."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [(folder / f"slot{index}").open("w") for index in range(count)]
    try:
        while True:
            for file in files:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
                yield
                return
            time.sleep(_POLL_SECONDS)
    finally:
        for file in files:
            file.close()


def resources(log: str) -> dict[str, dict[str, int]]:
    """Registers, spilled bytes, stack and static shared memory of each kernel, from what ``ptxas -v`` prints."""
    found: dict[str, dict[str, int]] = {}
    kernel = ""
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            kernel = match.group(1)
            found[kernel] = {"registers": 0, "spill_stores": 0, "spill_loads": 0, "stack": 0, "shared": 0}
        if not kernel:
            continue
        if match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, stores, loads = (int(group) for group in match.groups())
            found[kernel].update(stack=stack, spill_stores=stores, spill_loads=loads)
        if match := re.search(r"Used (\d+) registers", line):
            found[kernel]["registers"] = int(match.group(1))
            if shared := re.search(r"(\d+) bytes smem", line):
                found[kernel]["shared"] = int(shared.group(1))
    return found


def judge(log: str) -> dict[str, dict[str, int]]:
    """The kernels' resources.

    Raises:
        RefusedError: a kernel spills registers, or its wgmma instructions run one after the other.
    """
    for line in log.splitlines():
        if "C7510" in line or "wgmma.mma_async instructions are serialized" in line:
            raise RefusedError(f"ptxas serialises wgmma: {line.strip()}")
    found = resources(log)
    for kernel, used in found.items():
        if used["spill_stores"] or used["spill_loads"]:
            raise RefusedError(
                f"{kernel} spills registers: {used['spill_stores']} bytes stored, {used['spill_loads']} bytes loaded"
            )
    return found


def compile_library(job: dict[str, Any]) -> None:
    """Compiles into the scratch folder and publishes."""
    work = Path(job["work"])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    library = work / job["library"]
    command = [str(library) if word == OUTPUT else word for word in job["command"]]
    started = time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True, cwd=work)
    log = result.stdout + result.stderr
    if result.returncode:
        raise RefusedError(f"the compiler failed with status {result.returncode}:\n{' '.join(command)}\n{log}")
    if not library.is_file():
        raise RefusedError(f"the compiler wrote nothing:\n{' '.join(command)}\n{log}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    manifest = {
        **job["manifest"],
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_bytes": used.ru_maxrss * 1024,
        "library": library.name,
        "bytes": library.stat().st_size,
        "seconds": round(time.monotonic() - started, 1),
        "kernels": judge(log),
    }
    (work / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for path in work.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    folder = Path(job["folder"])
    if folder.exists():  # damaged since it was published
        shutil.rmtree(folder)
    os.rename(work, folder)


def is_whole(folder: Path) -> bool:
    """Whether a published folder has all its bytes."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return bool((folder / manifest["library"]).stat().st_size == manifest["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def main(job_file: str) -> int:
    """Builds what the job says, unless somebody else has done it meanwhile; 1 after a message if it is refused."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    try:
        with locked(Path(job["lock"])):
            if is_whole(Path(job["folder"])):
                return 0
            with slot(Path(job["slots"]), job["num_slots"]):
                compile_library(job)
    except RefusedError as error:
        print(f"{job['manifest']['variant']}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{job['manifest']['variant']}: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(job["work"], ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

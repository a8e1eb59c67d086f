"""Builds the variants that are missing: a generated build file for ninja, locks, progress.

Any number of processes may build at once. A variant is compiled by whoever takes its lock first, the others find it
published; compilers of all builds together are no more than memory and processors allow.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chunkattn.build import sources, step, store, toolchain
from chunkattn.build.variants import Variant
from chunkattn.env import SETTINGS

_COMPILER_BYTES = 5 << 30  # a CuTe kernel takes up to 4 GB
REPORT_SECONDS = 10.0
_NAMED = 4  # variants in a line of the report

Report = Callable[[str], None]


class BuildError(RuntimeError):
    """A variant could not be built; the message says which one and why."""


def to_stderr(line: str) -> None:
    """The default report: a line for a person who waits."""
    print(f"chunkattn: {line}", file=sys.stderr, flush=True)


def parallel_compilers() -> int:
    """Compilers that may run at once: CHUNKATTN_BUILD_JOBS, or what processors and free memory allow."""
    if SETTINGS.build_jobs is not None:
        return SETTINGS.build_jobs
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(processors // 2, _free_memory() // _COMPILER_BYTES))


def _free_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return _COMPILER_BYTES


def unbuildable_reason(variant: Variant) -> str | None:
    """Why the variant cannot be built here, in one sentence; None if nothing is known to be in the way."""
    try:
        toolchain.find()
        if variant.cutlass:
            toolchain.cutlass_include()
    except toolchain.MissingToolError as error:
        return str(error)
    if sources.source_root() is None:
        return "the package came without kernel sources (csrc)"
    return unwritable_reason(store.cache_directory())


def unwritable_reason(folder: Path) -> str | None:
    """Why nothing can be kept in a folder (which need not exist yet); None if it can."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return None
    return f"the cache directory {folder} cannot be written (set CHUNKATTN_CACHE to another one)"


def build(
    variants: Sequence[Variant], *, output: Path | None = None, report: Report = to_stderr
) -> dict[str, store.Library]:
    """Builds what is missing of these variants and returns all of them by name.

    Args:
        output: folder to build into; None is the cache directory.
        report: told what goes on, a line at a time.

    Raises:
        BuildError: something is missing, or the compiler or ptxas refused; nothing half made is left.
    """
    place = ("cache", output or store.cache_directory())
    known = (place,) if output else (("package", store.PACKAGE_LIBRARIES), place)
    found = {variant.name: store.find(variant, known) for variant in variants}
    missing = [variant for variant in variants if found[variant.name] is None]
    if missing:
        try:
            _build_missing(missing, place[1], report)
        except toolchain.MissingToolError as error:
            raise BuildError(f"{missing[0].name} cannot be built: {error}") from error
        except OSError as error:
            raise BuildError(f"{missing[0].name} cannot be built in {place[1]}: {error}") from error
        found.update({variant.name: store.find(variant, (place,)) for variant in missing})
    lost = [name for name, library in found.items() if library is None]
    if lost:
        raise BuildError(f"{', '.join(lost)}: expected a library after the build, got none (did a source change?)")
    return {name: library for name, library in found.items() if library is not None}


def _build_missing(missing: Sequence[Variant], target: Path, report: Report) -> None:
    tools = toolchain.find()
    with _scratch(target) as (scratch, held):
        jobs = [_write_job(variant, tools, target, scratch) for variant in missing]
        _write_ninja(scratch / "build.ninja", jobs, parallel_compilers())
        names = [job["manifest"]["variant"] for job in jobs]
        report(f"building {_some(names)} (once; kept in {target})")
        _run_ninja([tools.ninja, "-k", "0", "-C", str(scratch)], held, scratch / "log", jobs, report)


@contextlib.contextmanager
def _scratch(target: Path) -> Iterator[tuple[Path, int]]:
    """A folder for this build's files, on the file system of `target`; removes what killed builds left.

    Also yields the descriptor of a locked file in it. Ninja and its steps inherit it: the folder counts as in use for
    as long as one of them lives.
    """
    root = target / ".work"
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # no folder is made or judged meanwhile
        for left in root.iterdir():
            if left.is_dir() and not _is_held(left / "held"):
                shutil.rmtree(left, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(dir=root))
        held = (scratch / "held").open("w")
        fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield scratch, held.fileno()
    finally:
        held.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _is_held(path: Path) -> bool:
    try:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _write_job(variant: Variant, tools: toolchain.Toolchain, target: Path, scratch: Path) -> dict[str, Any]:
    root = sources.source_root()
    assert root is not None  # its absence was reported before
    key = store.key_of(variant)
    includes = [*sources.include_folders(root), *([toolchain.cutlass_include()] if variant.cutlass else [])]
    source = root / variant.source
    command = [tools.nvcc, *store.compile_flags(variant), *(f"-I{folder}" for folder in includes)]
    job = {
        "command": [*command, str(source), "-o", step.OUTPUT],
        "library": f"{variant.name}.so",
        "folder": str(target / key.folder),
        "work": str(scratch / variant.name),
        "lock": str(target / ".locks" / key.folder),
        "slots": str(target / ".locks"),
        "num_slots": parallel_compilers(),
        "manifest": {
            "variant": variant.name,
            "arch": variant.arch,
            "sources": key.sources,
            "tools": key.tools,
            "compiler": tools.compiler,
            "runtime": str(tools.runtime or ""),
            "flags": list(store.compile_flags(variant)),
        },
    }
    (scratch / f"{variant.name}.json").write_text(json.dumps(job), encoding="utf-8")
    return job


def _escaped(text: str) -> str:
    return text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _step_command() -> str:
    return " ".join(shlex.quote(word) for word in (sys.executable, "-I", step.__file__)).replace("$", "$$")


def _write_ninja(file: Path, jobs: Sequence[dict[str, Any]], depth: int) -> None:
    lines = [
        "ninja_required_version = 1.8",
        "pool compilers",
        f"  depth = {depth}",
        "rule variant",
        f"  command = {_step_command()} $in",
        "  description = $name",
        "  pool = compilers",
    ]
    for job in jobs:
        name = job["manifest"]["variant"]
        # ninja makes the folders of its outputs: no output may lie where libraries are published.
        path = _escaped(str(file.parent / name))
        lines += [f"build {path}.done: variant {path}.json", f"  name = {name}"]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _run_ninja(command: list[str], held: int, log: Path, jobs: Sequence[dict[str, Any]], report: Report) -> None:
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, pass_fds=[held])
    try:
        while True:
            try:
                status = process.wait(REPORT_SECONDS)
                break
            except subprocess.TimeoutExpired:
                left = [job["manifest"]["variant"] for job in jobs if not step.is_whole(Path(job["folder"]))]
                seconds = time.monotonic() - started
                report(f"{len(jobs) - len(left)} of {len(jobs)} built after {seconds:.0f} s; to go: {_some(left)}")
    except BaseException:
        process.terminate()  # ninja ends its compilers
        process.wait()
        raise
    if status:
        raise BuildError(_reason(log.read_text(encoding="utf-8", errors="replace")))


def _some(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _reason(log: str) -> str:
    """What the steps said, without ninja's own lines."""
    said = [line for line in log.splitlines() if not line.startswith(("ninja:", "[", "FAILED:", _step_command()))]
    return "\n".join(said).strip() or log

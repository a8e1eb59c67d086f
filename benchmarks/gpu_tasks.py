"""What the GPU check does, task by task; `gpu_check.py` runs this file in a process of its own.

Every task returns plain data. Inputs are made on the device, since filling gigabytes on the host takes minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import json
import re
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_graphs
import gpu_times
import torch

import chunkattn
from chunkattn.backends.cuda import select
from chunkattn.backends.device import Gpu, gpu
from chunkattn.bench import gate, machine
from chunkattn.bench.case import BenchCase, Heads
from chunkattn.bench.cases import load
from chunkattn.bench.record import Part
from chunkattn.build import builder
from chunkattn.build.variants import Variant
from chunkattn.planning import choose

GPU_BACKENDS = ("triton", "cuda")
_RIGHT = 1.0  # row budgets


def schedule(dry_run: bool) -> list[tuple[str, float]]:
    """(task, seconds it may take), what matters most first."""
    backends = ("cpu",) if dry_run else GPU_BACKENDS
    tasks = [(f"right {name} {what}", 60.0) for name in backends for what in (*CORRECTNESS, CACHE_OPS)]
    tasks += [(f"sync {name}", 40.0) for name in backends]
    tasks += [(f"graph {name}", 50.0) for name in backends]
    tasks += [(f"{name} p16", 90.0) for name in ("W4", "W3", "W2", "W5", "W10")]
    tasks += [("small", 40.0), ("reach", 30.0)]
    tasks += [(f"{name} p16", 90.0) for name in ("W1", "W9", "W7", "W6")]
    tasks += [(f"{name} p128", 90.0) for name in ("W4", "W3", "W2")]
    tasks.append(("W4 p256", 90.0))
    return tasks


@functools.cache
def workloads(dry_run: bool) -> dict[str, BenchCase]:
    """W1 to W10 by task name; in a dry run batches of the same kind that take a CPU milliseconds."""
    found = {f"{case.name} p{case.page_size}": case for case in load("gpu").cases}
    found["W4 p256"] = found["W4 p128"].but(page_size=256)  # FlashAttention 2 takes no smaller pages
    if not dry_run:
        return found

    def shrunk(case: BenchCase) -> BenchCase:
        requests = tuple((min(count, 4), min(q, 16), min(history, 60)) for count, q, history in case.requests)
        return case.but(requests=requests, heads=Heads(4, 2, 64, 64))

    return {name: shrunk(case) for name, case in found.items()}


_CORRECTNESS = (
    BenchCase("check", "mixed", ((1, 512, 8192), (16, 1, 4095))),
    BenchCase("check", "speculative", ((4, 5, 3000), (2, 130, 77)), Heads(40, 8, 128, 128), page_size=24),
    BenchCase("check", "window", ((1, 300, 5000), (4, 1, 9000)), Heads(16, 8, 256, 256, (1023, -1), False, 30.0)),
    BenchCase("check", "sinks", ((2, 257, 4000), (8, 1, 700)), Heads(64, 8, 64, 64, (127, -1), True)),
    BenchCase("check", "fp8", ((1, 200, 2000), (8, 1, 4000)), kv_dtype="fp8_e4m3", page_size=64),
    BenchCase("check", "fp8 d256", ((1, 130, 3000), (4, 1, 4000)), Heads(16, 8, 256, 256), kv_dtype="fp8_e4m3"),
    BenchCase("check", "int8", ((1, 64, 1000), (8, 1, 4000)), kv_dtype="int8", layout="hnd"),
    BenchCase("check", "fp16 d192", ((1, 128, 4096), (4, 1, 4096)), Heads(16, 16, 192, 128), "fp16", "fp16"),
    BenchCase("check", "fp32", ((1, 40, 500), (4, 1, 1000)), Heads(8, 2, 64, 64), "fp32", "fp32"),
    BenchCase("check", "invariant", ((1, 100, 5000), (4, 1, 9000)), invariant=True),
    BenchCase("check", "long", ((1, 1, 131071), (3, 1, 4095)), page_size=128),
)
CORRECTNESS = {case.name: case for case in _CORRECTNESS}
CACHE_OPS = "cache operators"


def right(backend: str, what: str, dry_run: bool) -> dict[str, Any]:
    """Every row against the reference backend on the device, a sample of rows against the float64 oracle."""
    device = device_of(dry_run)
    if what == CACHE_OPS:
        return {"checks": gpu_graphs.check_cache_ops(backend, device, small=dry_run), "dry_run": dry_run}
    case = CORRECTNESS[what]
    small = case if not dry_run else case.but(requests=((1, 9, 40), (2, 1, 50)))
    return {"checks": [_check_attention(small, backend, device)], "dry_run": dry_run}


def libraries(device: Gpu) -> list[Variant]:
    """What the tasks run of the CUDA backend on such a GPU."""
    cases = (*CORRECTNESS.values(), *workloads(False).values())
    found = [select.candidates(case.problem("cuda"), device)[0][:1] for case in cases]
    found += [select.of_kernel(kernel, device)[:1] for kernel in ("plan", "append_kv", "merge_states", "pages")]
    return sorted({variant for some in found for variant in some}, key=lambda variant: variant.name)


def prepare(report: builder.Report = builder.to_stderr) -> str:
    """Builds those of them that are missing; what stands in the way, "" if nothing does."""
    here = gpu("cuda")
    if here is None:
        return "no GPU is there"
    try:
        builder.build(libraries(here), report=report)
    except builder.BuildError as error:
        return str(error)
    return ""


def _check_attention(case: BenchCase, backend: str, device: torch.device) -> dict[str, Any]:
    inputs = gpu_times.device_inputs(case, 0, device)
    entry = {"backend": backend, "what": case.name, "served": True, "right": False, "error": ""}
    try:
        out, lse = chunkattn.attention(*inputs.batch(), **inputs.options(), return_lse=True, backend=backend)
        sample = gate.sample(inputs, pieces=4, rows=4)
        worst = gate.check(out, sample)
        reference, _ = chunkattn.attention(*inputs.batch(), **inputs.options(), return_lse=True, backend="reference")
        whole = gate.check(out, gate.Expected(torch.arange(len(out)), reference.double().cpu()))
        finite = bool(torch.isfinite(lse).all())
        entry["right"] = worst <= _RIGHT and finite
        entry["error"] = (
            f"{worst:.2f} budgets of the oracle, {whole:.2f} of the reference backend, lse finite: {finite}"
        )
    except chunkattn.UnsupportedError as error:
        entry |= {"served": False, "right": True, "error": str(error)}
    except gate.Refused as error:
        entry["error"] = str(error)
    return entry


def small(dry_run: bool) -> dict[str, Any]:
    """The shortest calls: one decode of 1k keys, planned ahead, and a plan for 65 requests; microseconds."""
    device = device_of(dry_run)
    found: dict[str, dict[str, Any]] = {}
    for backend in backends_here(dry_run):
        found[backend] = {}
        for key, measure in (("decode_1k_us", gpu_times.decode_us), ("plan_us", gpu_times.plan_us)):
            try:
                found[backend][key] = measure(backend, device)
            except (RuntimeError, ValueError) as error:
                found[backend]["error"] = f"{key}: {error}"
    return {"backends": found, "dry_run": dry_run}


def backends_here(dry_run: bool) -> tuple[str, ...]:
    """Our backends that can serve plain bf16 attention on this machine."""
    device = device_of(dry_run)
    spec = chunkattn.AttentionSpec(device.type, torch.bfloat16, torch.bfloat16, 32, 8, 128, 128, 16)
    found = []
    for name in ("cpu",) if dry_run else GPU_BACKENDS:
        try:
            choose.backend(spec, name)
        except (ValueError, chunkattn.UnsupportedError):
            continue
        found.append(name)
    return tuple(found)


def device_of(dry_run: bool) -> torch.device:
    """Where the check runs."""
    return torch.device("cpu" if dry_run else "cuda")


def run(task: str, dry_run: bool) -> Any:
    """One task by name."""
    kind, _, rest = task.partition(" ")
    if kind == "right":
        backend, _, what = rest.partition(" ")
        return right(backend, what, dry_run)
    if kind == "sync":
        return gpu_graphs.no_sync(rest, device_of(dry_run))
    if kind == "graph":
        return gpu_graphs.replays(rest, device_of(dry_run), mixes=20 if dry_run else 500)
    if kind == "small":
        return small(dry_run)
    if kind == "reach":
        return gpu_times.reach(device_of(dry_run))
    cell = gpu_times.cell_of(workloads(dry_run)[task], backends_here(dry_run), device_of(dry_run))
    return {"cell": cell, "dry_run": dry_run}


def header(dry_run: bool) -> dict[str, Any]:
    """What stands at the top of the result file."""
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    command = machine.command("python benchmarks/gpu_check.py")
    part = Part(command, now, 0.0, machine.describe(), machine.versions(), {"dry_run": dry_run})
    about = "A dry run on a CPU: it says nothing about a GPU." if dry_run else "Measured on the GPU named below."
    return {"schema": 1, "about": about, "part": dataclasses.asdict(part)}


def file_name(head: dict[str, Any]) -> str:
    """Of the result file: the date and the GPU."""
    date = head["part"]["started"][:10]
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no gpu"
    return f"{date}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}-gpu-check.json"


def main() -> None:
    """Runs the tasks it is given and appends a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("tasks", nargs="+")
    given = parser.parse_args()
    if given.dry_run:
        torch.set_num_threads(1)  # tiny batches; on a busy machine a second thread would mostly be waited for
    call: Callable[[str, bool], Any] = run
    for task in given.tasks:
        begin = time.perf_counter()
        entry: dict[str, Any] = {"task": task, "status": "done", "reason": ""}
        try:
            entry["data"] = call(task, given.dry_run)
        except Exception as error:  # whatever a backend or a peer raises, the other tasks go on
            traceback.print_exc()
            entry |= {"status": "failed", "data": None, "reason": f"{type(error).__name__}: {error}"[:500]}
        entry["seconds"] = round(time.perf_counter() - begin, 2)
        with given.out.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")
        if entry["status"] == "failed" and "CUDA error" in entry["reason"]:
            raise SystemExit(3)  # the context is lost; the parent starts another process for the rest


if __name__ == "__main__":
    main()

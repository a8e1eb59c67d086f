"""The instantiations of the GPU kernels, as csrc/variants.toml lists them."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkattn.build.sources import source_root

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ARCHITECTURES = ("80", "90a")
_CPP_DTYPES = {
    "bf16": "kBF16",
    "fp16": "kF16",
    "fp32": "kF32",
    "e4m3": "kE4M3",
    "e5m2": "kE5M2",
    "i8": "kI8",
}
_FIELDS = {"kernel", "arch", "head_dims", "dtype", "kv_dtype", "lacks", "tile", "constants"}


@dataclass(frozen=True)
class Variant:
    """One instantiation of one kernel for one architecture.

    Attributes:
        kernel: the folder below csrc/kernels and the launcher's name.
        arch: "80" (sm_80 and newer) or "90a" (sm_90 alone).
        source: its launch.cu, relative to csrc.
        cutlass: whether CUTLASS headers are needed.
        head_dim, head_dim_v: None where the kernel takes any.
        dtype, kv_dtype: "bf16", …; None where the kernel takes all. kv_dtype is never "same" here.
        tile: name of the tile shape, "" for the only one.
        constants: (name, value) pairs.
        lacks: options of a problem (names of `AttentionSpec` fields, or "token_scale") that it refuses.
    """

    kernel: str
    arch: str
    source: str
    cutlass: bool = False
    head_dim: int | None = None
    head_dim_v: int | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    tile: str = ""
    constants: tuple[tuple[str, int], ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is called in messages, on the command line and in the cache."""
        parts = [self.kernel]
        if self.head_dim is not None:
            parts.append(
                f"d{self.head_dim}" if self.head_dim == self.head_dim_v else f"d{self.head_dim}x{self.head_dim_v}"
            )
        if self.dtype is not None:
            parts.append(self.dtype)
        if self.kv_dtype not in (None, self.dtype):
            parts.append(f"kv_{self.kv_dtype}")
        if self.tile:
            parts.append(self.tile)
        return "-".join([*parts, f"sm{self.arch}"])

    @property
    def launcher(self) -> str:
        """The symbol of its launcher."""
        return f"chunkattn_{self.kernel}"

    def constant(self, name: str) -> int:
        """A constant by name; KeyError where the list gives none."""
        return dict(self.constants)[name]

    def defines(self) -> tuple[str, ...]:
        """Compiler arguments that select the instantiation."""
        values: dict[str, object] = {}
        if self.head_dim is not None:
            values.update(HEAD_DIM=self.head_dim, HEAD_DIM_V=self.head_dim_v)
        if self.dtype is not None:
            values["DTYPE"] = f"chunkattn::DType::{_CPP_DTYPES[self.dtype]}"
        if self.kv_dtype is not None:
            values["KV_DTYPE"] = f"chunkattn::DType::{_CPP_DTYPES[self.kv_dtype]}"
        values.update({name.upper(): value for name, value in self.constants})
        return tuple(f"-DCHUNKATTN_{name}={value}" for name, value in values.items())


@functools.cache
def all_variants() -> tuple[Variant, ...]:
    """Every variant of the list; empty where the package was installed without kernel sources."""
    root = source_root()
    return () if root is None else read(root / "variants.toml")


def read(path: Path) -> tuple[Variant, ...]:
    """The variants of one list.

    Raises:
        ValueError: an entry that is not as the head of csrc/variants.toml says, or two of one name.
    """
    with path.open("rb") as file:
        listed = tomllib.load(file)
    kernels = listed.get("kernels", {})
    found: dict[str, Variant] = {}
    for entry in listed.get("variants", []):
        for variant in _expanded(entry, kernels):
            if variant.name in found:
                raise ValueError(f"{path.name}: expected every variant once, got {variant.name} twice (name its tile)")
            found[variant.name] = variant
    return tuple(found.values())


def _expanded(entry: dict[str, Any], kernels: dict[str, Any]) -> Iterator[Variant]:
    name = entry.get("kernel")
    if name not in kernels or not set(entry) <= _FIELDS:
        raise ValueError(f"variants: expected a listed kernel and fields of {sorted(_FIELDS)}, got {entry}")
    kernel = kernels[name]
    constants = tuple(sorted(entry.get("constants", {}).items()))
    axes: list[Sequence[Any]] = [
        entry["arch"],
        entry.get("head_dims", [(None, None)]),
        entry.get("dtype", [None]),
        entry.get("kv_dtype", [None]),
    ]
    for arch, (head_dim, head_dim_v), dtype, kv_dtype in itertools.product(*axes):
        if arch not in ARCHITECTURES:
            raise ValueError(f"arch: expected one of {', '.join(ARCHITECTURES)}, got {arch!r}")
        yield Variant(
            name,
            arch,
            kernel["source"],
            kernel.get("cutlass", False),
            head_dim,
            head_dim_v,
            dtype,
            dtype if kv_dtype == "same" else kv_dtype,
            entry.get("tile", ""),
            constants,
            (*kernel.get("lacks", ()), *entry.get("lacks", ())),
        )

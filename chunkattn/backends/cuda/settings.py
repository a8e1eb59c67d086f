"""What of the CUDA backend may be chosen by measurement: which kernel serves, and how work is cut for it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from chunkattn.backends.cuda import select, work_spec
from chunkattn.backends.device import Gpu
from chunkattn.backends.gpu_settings import ANY, gpu_of, key_of, measured_choice
from chunkattn.build import sources, store
from chunkattn.build.variants import Variant
from chunkattn.planning.work import WorkSpec, make_plan
from chunkattn.types import AttentionSpec

if TYPE_CHECKING:
    from chunkattn.planning.tuning_table import TuningKey

_CUT = {"items_per_worker": (work_spec.ITEMS_PER_WORKER, 4, 16), "split_cost": (work_spec.SPLIT_COST, 32, 512)}


class Settings(NamedTuple):
    """A choice.

    Attributes:
        arch: of the kernel: 80 for the one of sm_80 and newer, 90 for the one of sm_90 alone.
        items_per_worker, split_cost: see `WorkSpec`.
    """

    arch: int
    items_per_worker: int = work_spec.ITEMS_PER_WORKER
    split_cost: int = work_spec.SPLIT_COST


forced: Settings | None = None
"""Set while settings are measured; every call but invariant ones then takes it."""


def in_force(spec: AttentionSpec, device: Gpu) -> Settings | None:
    """The forced or measured choice for a problem; None for the default."""
    if spec.invariant or spec.op not in select.ATTENTION_OPS:
        return None
    return forced or _measured(_problem(spec), device)


def _problem(spec: AttentionSpec) -> AttentionSpec:
    """What a plan is told: it does not know of the cache's dtype nor of options."""
    facts = spec.device, spec.dtype, spec.dtype, spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.head_dim_v
    return AttentionSpec(*facts, spec.page_size, op="plan")


@functools.lru_cache(maxsize=1024)
def _measured(spec: AttentionSpec, device: Gpu) -> Settings | None:
    archs = _archs(spec, device)

    def read(values: Mapping[str, int]) -> Settings:
        if set(values) == set(Settings._fields):
            chosen = Settings(**values)
            if chosen.arch in archs and 1 <= chosen.items_per_worker <= 64 and 1 <= chosen.split_cost <= 1 << 16:
                return chosen
        raise ValueError(f"values: expected settings that fit sm_{device.arch}, got {dict(values)}")

    return measured_choice(_key(spec, device), read) if archs else None


def candidates(spec: AttentionSpec, device: Gpu, chosen: Settings | None) -> tuple[tuple[Variant, ...], str]:
    """As `select.candidates`, those of the chosen kernel first: the others serve where it cannot be built."""
    variants, reason = select.candidates(spec, device)
    if chosen is not None:
        variants = tuple(sorted(variants, key=lambda variant: _arch(variant) != chosen.arch))
    return variants, reason


def _arch(variant: Variant) -> int:
    return int(variant.arch.rstrip("a"))


def _archs(spec: AttentionSpec, device: Gpu) -> tuple[int, ...]:
    """Of the kernels that serve a problem, best first."""
    return tuple(dict.fromkeys(_arch(variant) for variant in select.candidates(spec, device)[0]))


def settings_space(spec: AttentionSpec) -> Iterator[dict[str, int]]:
    """The default, other kernels, and the default kernel with its work cut otherwise."""
    archs = _archs(_problem(spec), gpu_of(spec))
    yield from (Settings(arch)._asdict() for arch in archs)
    for values in list(itertools.product(*_CUT.values()))[1:]:
        yield Settings(archs[0], *values)._asdict()


def kernel_of(values: Mapping[str, int]) -> int:
    """What is compiled: settings that differ in the rest share a kernel."""
    return values["arch"]


def planned(spec: AttentionSpec, q_lens: Sequence[int], kv_lens: Sequence[int]) -> tuple[WorkSpec, list[int]]:
    """The plan of a batch, and what else it depends on."""
    device, chosen = gpu_of(spec), in_force(spec, gpu_of(spec))
    work = work_of(candidates(_problem(spec), device, chosen)[0][0], device, spec, (-1, -1), 0, chosen)
    return work, make_plan(work, [0, *itertools.accumulate(q_lens)], kv_lens)


def work_of(
    variant: Variant,
    device: Gpu,
    spec: AttentionSpec,
    window: tuple[int, int],
    num_splits: int,
    chosen: Settings | None,
) -> WorkSpec:
    """What a plan for a variant depends on, the choice included."""
    cut = chosen or Settings(0)
    return work_spec.of_variant(
        variant,
        device,
        spec.num_q_heads,
        spec.num_kv_heads,
        spec.dtype.itemsize,
        causal=spec.causal,
        window=window,
        invariant=spec.invariant,
        num_splits=num_splits,
        items_per_worker=cut.items_per_worker,
        split_cost=cut.split_cost,
    )


def tuning_key(spec: AttentionSpec, mix_class: str = ANY) -> TuningKey:
    """What measured settings of a problem depend on."""
    return _key(_problem(spec), gpu_of(spec))


def _key(problem: AttentionSpec, device: Gpu) -> TuningKey:
    group = problem.num_q_heads // problem.num_kv_heads
    variants = (*select.candidates(problem, device)[0], *select.of_kernel("plan", device))
    facts = problem.dtype, problem.head_dim, problem.head_dim_v, group, problem.page_size
    return key_of("cuda", kernel_hash(variants), device, *facts)


@functools.cache
def kernel_hash(variants: Sequence[Variant]) -> str:
    """Of what kernels are compiled from: the sources that they reach, the list's constants, flags.

    Raises:
        FileNotFoundError: the package came without kernel sources.
    """
    root = sources.source_root()
    if root is None:
        raise FileNotFoundError("the package came without kernel sources (csrc)")
    kernels = {variant.source for variant in variants}
    files = {source: sources.reached_files(root / source, sources.include_folders(root)) for source in kernels}
    parts = []
    for variant in variants:
        parts += [variant.name, sources.digest(files[variant.source], root.resolve(), store.compile_flags(variant))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def with_settings(values: Mapping[str, int]) -> Iterator[None]:
    """Inside it every call and plan of this process takes these settings, but for invariant ones."""
    global forced
    before = forced
    forced = Settings(**values)
    try:
        yield
    finally:
        forced = before

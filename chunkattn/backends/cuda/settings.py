"""What of the CUDA backend may be chosen by measurement: which kernel serves, and how work is cut for it.

As with every GPU backend one choice serves all mixes of a problem, and invariant mode takes the default.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from chunkattn.backends.cuda import select, work_spec
from chunkattn.backends.device import Gpu, gpu
from chunkattn.build.sources import source_root
from chunkattn.build.variants import Variant
from chunkattn.planning.work import WorkSpec, make_plan
from chunkattn.types import AttentionSpec

if TYPE_CHECKING:
    from chunkattn.planning.tuning_table import TuningKey

_CUT = {"items_per_worker": (work_spec.ITEMS_PER_WORKER, 4, 16), "split_cost": (work_spec.SPLIT_COST, 32, 512)}
ANY = "any"


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
    from chunkattn.planning import measured

    found = measured.in_force().get(_key(spec, device))
    if found is None:
        return None
    try:
        chosen = Settings(**found.entry.values)
        least, most = min(chosen[1:]), max(chosen[1:])
        if chosen.arch in _archs(spec, device) and least >= 1 and most <= 1 << 16 and chosen.items_per_worker <= 64:
            return chosen
    except TypeError:
        pass
    warnings.warn(f"a measured setting of the cuda backend is not used: {dict(found.entry.values)}", stacklevel=2)
    return None


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
    archs = _archs(_problem(spec), _gpu(spec))
    yield from (Settings(arch)._asdict() for arch in archs)
    for values in list(itertools.product(*_CUT.values()))[1:]:
        yield Settings(archs[0], *values)._asdict()


def kernel_of(values: Mapping[str, int]) -> int:
    """What is compiled: settings that differ in the rest share a kernel."""
    return values["arch"]


def mix_class(spec: AttentionSpec, q_lens: Sequence[int], kv_lens: Sequence[int]) -> str:
    return ANY


def planned(spec: AttentionSpec, q_lens: Sequence[int], kv_lens: Sequence[int]) -> tuple[WorkSpec, list[int]]:
    """The plan of a batch, and what else it depends on."""
    device, chosen = _gpu(spec), in_force(spec, _gpu(spec))
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
    return _key(_problem(spec), _gpu(spec))


def _key(spec: AttentionSpec, device: Gpu) -> TuningKey:
    import chunkattn
    from chunkattn.planning.tuning_table import TuningKey

    page_class = min(1 << (spec.page_size.bit_length() - 1), 256)
    return TuningKey(
        "cuda",
        f"{device.name or f'sm_{device.arch}'}, {device.num_sms} SMs",
        device.driver,
        chunkattn.__version__,
        kernel_hash(),
        str(spec.dtype).removeprefix("torch."),
        spec.head_dim,
        spec.head_dim_v,
        spec.num_q_heads // spec.num_kv_heads,
        str(page_class),
        ANY,
    )


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


@functools.cache
def kernel_hash() -> str:
    """Of the kernels' sources and the list of their instantiations."""
    root, digest = source_root(), hashlib.sha256()
    if root is not None:
        found = [root / "variants.toml", *(root / "include").rglob("*"), *(root / "kernels").rglob("*")]
        for path in sorted(path for path in found if path.is_file()):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _gpu(spec: AttentionSpec) -> Gpu:
    found = gpu(spec.device)
    assert found is not None  # supports() was asked before
    return found

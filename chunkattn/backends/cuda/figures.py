"""Builds the attention kernel of a call for a GPU that is not at hand, and says what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from chunkattn.args import AttentionArgs, attention_spec
from chunkattn.backends.cuda import settings
from chunkattn.backends.device import Gpu
from chunkattn.build import builder


@dataclass(frozen=True)
class Figures:
    """What ptxas says. The sources assert that their shared memory fits; a build that spills registers is refused.

    Attributes:
        registers: of a thread.
        spill_bytes: that a thread stores to and loads from local memory.
    """

    registers: int
    spill_bytes: int


def compiled(a: AttentionArgs, device: Gpu) -> Figures:
    """Takes the kernel from the package or the cache, or compiles it.

    Args:
        a: the call; its tensors may lie anywhere, they are not read.
        device: the GPU to compile for.

    Raises:
        RuntimeError: no kernel serves the call, or nvcc or ptxas refuses.
    """
    spec = attention_spec(a)
    variants, reason = settings.candidates(spec, device, settings.in_force(spec, device))
    if reason:
        raise RuntimeError(reason)
    kernels = builder.build(variants[:1])[variants[0].name].manifest["kernels"].values()
    return Figures(
        max(used["registers"] for used in kernels),
        max(used["spill_stores"] + used["spill_loads"] for used in kernels),
    )

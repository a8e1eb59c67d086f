"""Who serves a problem, and how much memory that takes: `supports`, `explain`, `workspace_bytes`."""

from __future__ import annotations

from chunkattn import validate
from chunkattn.backends.base import Support
from chunkattn.env import SETTINGS
from chunkattn.errors import UnsupportedError
from chunkattn.planning import choose
from chunkattn.types import AttentionSpec


def supports(spec: AttentionSpec, *, backend: str | None = None) -> Support:
    """Whether a problem can be served, here and now, by the named backend or by any.

    Raises:
        TypeError: facts or a name of the wrong type.
        ValueError: no backend has that name.

    Example:
        >>> import torch, chunkattn
        >>> spec = chunkattn.AttentionSpec("cpu", torch.bfloat16, torch.bfloat16, 32, 8, 128, 128, 16)
        >>> bool(chunkattn.supports(spec))
        True
    """
    reasons = validate.refusals(spec)
    if reasons:
        return Support(reasons)
    validate.backend_name(backend)
    try:
        choose.backend(spec, backend)
    except UnsupportedError as error:
        return Support((str(error),))
    return Support()


def explain(spec: AttentionSpec) -> str:
    """The table of backends for a problem: which one is taken, with which configuration, and why the others are
    not. Where ``CHUNKATTN_BACKEND`` asks for one, it comes first and a last line says what that means for calls.

    Example:
        >>> import torch, chunkattn
        >>> spec = chunkattn.AttentionSpec("cpu", torch.bfloat16, torch.bfloat16, 32, 8, 128, 128, 16)
        >>> print(chunkattn.explain(spec))  # doctest: +SKIP
        cpu        taken      avx512bf16, 2 threads
        reference  capable    eager PyTorch
    """
    reasons = validate.refusals(spec)
    if reasons:
        return "\n".join(reasons)
    rows = choose.table(spec)
    lines = [f"{name:<10} {state:<10} {said}" for name, state, said in rows]
    if SETTINGS.backend:
        taken = any(state == "taken" for _, state, _ in rows)
        meaning = "calls that name no backend take it" if taken else "calls that name no backend are refused"
        lines.append(f"CHUNKATTN_BACKEND={SETTINGS.backend}: {meaning}")
    return "\n".join(lines)


def workspace_bytes(
    spec: AttentionSpec, *, max_tokens: int, max_seq_len: int, num_splits: int | None = None, backend: str | None = None
) -> int:
    """A workspace of this many bytes suffices for every `attention` call within the maxima, whatever the mix.

    Args:
        max_tokens: most query tokens T of a call.
        max_seq_len: most KV tokens of a request (M·P of the block table).
        num_splits: as passed to `attention`.

    Raises:
        ValueError, TypeError: facts that no operator accepts, or maxima that are no counts.
        UnsupportedError: no backend (or not the named one) can serve them.

    Example:
        >>> import torch, chunkattn
        >>> spec = chunkattn.AttentionSpec("cpu", torch.bfloat16, torch.bfloat16, 32, 8, 128, 128, 16)
        >>> chunkattn.workspace_bytes(spec, max_tokens=64, max_seq_len=128)
        0
    """
    reasons = validate.refusals(spec)
    if reasons:
        raise ValueError(reasons[0])
    validate.counts(max_tokens=max_tokens, max_seq_len=max_seq_len)
    splits = validate.num_splits(num_splits, spec.invariant)
    validate.backend_name(backend)
    chosen = choose.backend(spec, backend)
    return chosen.workspace_bytes(
        spec, min(max_tokens, validate.MAX_COUNT), min(max_seq_len, validate.MAX_COUNT), splits
    )

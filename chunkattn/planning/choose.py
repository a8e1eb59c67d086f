"""The choice between backends."""

from __future__ import annotations

import functools

from chunkattn import backends
from chunkattn.backends.base import Backend
from chunkattn.env import SETTINGS
from chunkattn.errors import UnsupportedError
from chunkattn.types import AttentionSpec


@functools.lru_cache(maxsize=4096)
def backend(spec: AttentionSpec, name: str | None = None) -> Backend:
    """The named backend, or the best capable one.

    An explicit name never falls back silently.

    Raises:
        ValueError: no backend has that name.
        UnsupportedError: it, or no backend, can serve the problem; every reason is listed.
    """
    name = name or SETTINGS.backend
    names = (name,) if name else backends.candidates(spec.device)
    refusals = []
    for candidate in names:
        module = backends.load(candidate)
        support = module.supports(spec)
        prepare = getattr(module, "prepare", None)
        if support and prepare is not None:
            support = prepare(spec)
        if support:
            return module
        refusals += [f"{candidate}: {reason}" for reason in support.reasons]
    said = "; ".join(refusals)
    if not name:
        raise UnsupportedError(f"no backend can serve this problem; {said}")
    able = [other for other in backends.candidates(spec.device) if backends.load(other).supports(spec)]
    instead = f"; {' and '.join(able)} can" if able else ""
    raise UnsupportedError(f"backend: expected one that can serve this problem, got {name!r}; {said}{instead}")


@functools.cache
def first(device_type: str) -> Backend:
    """The backend that is asked first for a device."""
    return backends.load(backends.candidates(device_type)[0])


def name_of(module: Backend) -> str:
    """The registered name of a backend module."""
    return next(name for name in backends.MODULES if backends.load(name) is module)


def table(spec: AttentionSpec) -> list[tuple[str, str, str]]:
    """(name, state, configuration or reasons) of every backend that knows the device, best first; before them the one
    that CHUNKATTN_BACKEND asks for.

    The state is "taken" for the one that serves a call which names none, "capable" for others that could, or "refuses".
    Nothing is taken where the one asked for refuses: a call falls back on no other.
    """
    asked = SETTINGS.backend
    rows, taken = [], False
    for name in dict.fromkeys((*((asked,) if asked else ()), *backends.candidates(spec.device))):
        module = backends.load(name)
        support = module.supports(spec)
        if not support:
            rows.append((name, "refuses", "; ".join(support.reasons)))
            continue
        takes = not taken and asked in (None, name)
        taken = taken or takes
        rows.append((name, "taken" if takes else "capable", module.describe(spec)))
    return rows

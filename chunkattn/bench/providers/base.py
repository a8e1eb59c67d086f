"""The one signature of a provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from chunkattn.bench.case import BenchCase
from chunkattn.testing import AttentionInputs

Call = Callable[[], Tensor]
"""Does the step once, from the tensors it was prepared with as they are now; returns out [T, Hq, Dv]."""


class Provider(Protocol):
    """A module of this package.

    Attributes:
        LABEL: what tables and charts call it.
        INSTALL: the shell command that installs it, "" if nothing is needed.
        DEVICES: device types it runs on.
    """

    LABEL: str
    INSTALL: str
    DEVICES: tuple[str, ...]

    def missing(self) -> str | None:
        """Why it cannot run on this machine, or None."""

    def refuses(self, case: BenchCase) -> str | None:
        """Why it cannot do a case, or None."""

    def prepare(self, inputs: AttentionInputs) -> Call:
        """Builds what an engine builds once a step or once a cache, outside the timed call.

        The call must read q from `inputs.q` every time. K and V may be copied into the provider's own cache layout.
        """

"""What the prefill and the decode wrapper share: they differ in what is planned."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from chunkattn.compat.flashinfer.planned_step import PlannedStep, Scale, Scales
from chunkattn.compat.flashinfer.pools import PagedKVCache, check_layout
from chunkattn.compat.refusals import refuse_unless


class PagedWrapper:
    """A workspace, a layout, and the step that `plan` made."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str) -> None:
        self._name = type(self).__name__
        self._layout = check_layout(kv_layout)
        self._workspace = float_workspace_buffer
        self._step: PlannedStep | None = None

    def _run(
        self,
        q: Tensor,
        paged_kv_cache: PagedKVCache,
        *,
        scales: tuple[Scale | None, Scale | None, Scale | None],
        out: Tensor | None,
        lse: Tensor | None,
        return_lse: bool,
        window_left: int | None,
        sinks: Tensor | None,
        neutral: dict[str, tuple[Any, Any]],
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`run` of both.

        Args:
            scales: of q, k and v.
            neutral: arguments that must have their defaults: name -> (value, default).
        """
        step = planned(self._step)
        refuse_unless(self._name + ".run", **neutral)
        result, state = step.run(
            self._name + ".run",
            q,
            paged_kv_cache,
            scales=Scales(*scales),
            out=out,
            lse=lse,
            return_lse=return_lse,
            window_left=window_left,
            sinks=sinks,
        )
        return (result, state) if return_lse and state is not None else result

    def run_return_lse(self, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """`run` with ``return_lse=True``."""
        return self.run(*args, **options, return_lse=True)  # type: ignore[attr-defined, no-any-return]

    def end_forward(self) -> None:
        """Nothing to do."""

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor) -> None:
        """Takes another workspace from the next `plan` on; integers need none."""
        self._workspace = float_workspace_buffer


def planned(step: PlannedStep | None) -> PlannedStep:
    """The planned step.

    Raises:
        RuntimeError: there is none.
    """
    if step is None:
        raise RuntimeError("run: expected a plan before it, got none")
    return step

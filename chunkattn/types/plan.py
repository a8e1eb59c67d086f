"""How a step is cut into work items."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Plan:
    """How a step is cut into work items; made by `plan`, reused by every layer of the step.

    Attributes:
        words: int64 [words], the plan itself, on the device of the lengths.
        backend: the backend that made it and can run it.
        num_q_heads, num_kv_heads: head counts it was made for.
        workspace_bytes: a workspace of this many bytes suffices for this plan.
    """

    words: Tensor
    backend: str
    num_q_heads: int
    num_kv_heads: int
    workspace_bytes: int

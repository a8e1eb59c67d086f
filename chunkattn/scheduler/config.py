"""How a scheduler cuts the work into steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

POLICIES = ("fcfs", "sjf", "fair")


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits and rules.

    Attributes:
        token_budget: most tokens of a step, decodes and prompt chunks together; what papers on chunked prefill call
            the chunk size. None runs every prompt whole in one step, however long it is.
        max_num_seqs: most requests running at once.
        page_size: tokens per KV page.
        num_pages: pages of the cache.
        long_prefill_token_threshold: most prompt tokens of one request in a step while others want some, 0 = off; what
            they leave over goes back to the long prompts.
        chunk_alignment: a cut chunk ends at a multiple of this where it can.
        enable_prefix_caching: whether full pages of equal beginnings are shared.
        watermark: share of the pages that an admission leaves free while others run.
        policy: who goes first: "fcfs", "sjf" (shortest prompt, aged) or "fair" (least served client).
        sjf_aging: served tokens a waiting prompt counts for; 0 never ages, large is first come, first served.
        fair_weights: cost of a prompt token and of an output token.
        reserve_max_tokens: admission takes the pages of the whole answer too, so that nobody is ever preempted.
        prefill_first: a step has prompts or decodes, never both, and prompts go first: decodes stall.
        num_draft_tokens: most guessed tokens a decode may have verified, out of budget that nobody else wanted.

    Raises:
        ValueError: out of range, or a budget that could not give every running request its decode.
    """

    token_budget: int | None
    max_num_seqs: int
    page_size: int
    num_pages: int
    long_prefill_token_threshold: int = 0
    chunk_alignment: int = 1
    enable_prefix_caching: bool = True
    watermark: float = 0.0
    policy: str = "fcfs"
    sjf_aging: float = 0.25
    fair_weights: tuple[float, float] = (1.0, 2.0)
    reserve_max_tokens: bool = False
    prefill_first: bool = False
    num_draft_tokens: int = 0

    def __post_init__(self) -> None:
        least = dict.fromkeys(("max_num_seqs", "page_size", "num_pages", "chunk_alignment"), 1)
        least |= dict.fromkeys(("long_prefill_token_threshold", "num_draft_tokens", "sjf_aging"), 0)
        for name, bound in least.items():
            if not bound <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected at least {bound}, got {getattr(self, name)}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark: expected a share in [0, 1), got {self.watermark}")
        if self.policy not in POLICIES:
            raise ValueError(f"policy: expected one of {', '.join(POLICIES)}, got {self.policy!r}")
        if not all(0 < weight < math.inf for weight in self.fair_weights):
            raise ValueError(f"fair_weights: expected two positive costs, got {self.fair_weights}")
        if self.token_budget is not None and self.token_budget < self.max_num_seqs:
            raise ValueError(
                f"token_budget: expected at least max_num_seqs ({self.max_num_seqs}), so that every running request "
                f"gets its decode in every step, got {self.token_budget}"
            )

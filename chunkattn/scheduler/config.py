"""How a scheduler cuts the work into steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of a step and of the cache.

    Attributes:
        token_budget: most tokens of a step, decodes and prompt chunks together; what papers on chunked prefill call
            the chunk size. None runs every prompt whole in one step, however long it is.
        max_num_seqs: most requests running at once.
        page_size: tokens per KV page.
        num_pages: pages of the cache.
        chunk_alignment: a cut chunk ends at a multiple of this where it can.
        watermark: share of the pages that an admission leaves free while others run.

    Raises:
        ValueError: a limit out of range, or a budget that could not give every running request its decode.
    """

    token_budget: int | None
    max_num_seqs: int
    page_size: int
    num_pages: int
    chunk_alignment: int = 1
    watermark: float = 0.0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "page_size", "num_pages", "chunk_alignment"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark: expected a share in [0, 1), got {self.watermark}")
        if self.token_budget is not None and self.token_budget < self.max_num_seqs:
            raise ValueError(
                f"token_budget: expected at least max_num_seqs ({self.max_num_seqs}), so that every running request "
                f"gets its decode in every step, got {self.token_budget}"
            )

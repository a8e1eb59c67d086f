"""One user's request: what was asked for, and how far the scheduler has brought it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field


class Status(enum.Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "stopped"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "aborted"

    @property
    def is_finished(self) -> bool:
        return self in (Status.FINISHED_STOPPED, Status.FINISHED_LENGTH, Status.FINISHED_ABORTED)


@dataclass(eq=False)
class Request:
    """A prompt and the tokens sampled after it.

    The first five fields are the caller's, the others belong to the scheduler. Sampled tokens stay apart from the
    prompt, so that a preempted request goes on counting towards ``max_tokens`` where it was.

    Attributes:
        request_id: unique among the requests of a scheduler.
        prompt_token_ids: at least one token.
        max_tokens: most tokens to sample, at least 1.
        eos_token_ids: tokens that end the answer; they are part of the output.
        arrival_time: seconds on the engine's clock; earlier requests go first.
        output_token_ids: tokens sampled so far.
        num_computed_tokens: leading tokens whose keys and values are in the cache.
        prefill_until: tokens known when the request was last admitted; up to here it prefills, after it decodes.
        block_table: ids of its pages, in order.
        num_preemptions: how often it lost its pages.
        sequence_number: order of arrival at the scheduler; breaks ties.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    max_tokens: int
    eos_token_ids: frozenset[int] = frozenset()
    arrival_time: float = 0.0
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    prefill_until: int = 0
    block_table: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    num_preemptions: int = 0
    sequence_number: int = -1

    @property
    def num_tokens(self) -> int:
        """Tokens known so far, prompt and outputs."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def is_decode(self) -> bool:
        """Whether the next token to compute follows a sampled one.

        The state tells, not the length of the chunk: the last chunk of a prompt, or of a replay after a preemption,
        may be one token long and is a prefill all the same.
        """
        return self.num_computed_tokens >= self.prefill_until

    def tokens(self, start: int, end: int) -> list[int]:
        """Tokens at positions start…end-1."""
        prompt = self.prompt_token_ids
        known = list(prompt[start:end])
        return known + self.output_token_ids[max(start - len(prompt), 0) : max(end - len(prompt), 0)]

    def is_complete(self) -> Status | None:
        """The status the outputs end the request with, or None while it goes on."""
        if self.output_token_ids and self.output_token_ids[-1] in self.eos_token_ids:
            return Status.FINISHED_STOPPED
        return Status.FINISHED_LENGTH if len(self.output_token_ids) >= self.max_tokens else None


def slots_needed(num_prompt_tokens: int, max_tokens: int) -> int:
    """KV slots a request takes at most: the last sampled token is never fed back, so its KV is never computed."""
    return num_prompt_tokens + max_tokens - 1

"""One user's request: what was asked for, and how far the scheduler has brought it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


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


@dataclass(eq=False, slots=True)
class Request:
    """A prompt and the tokens sampled after it. Fields up to `num_external_tokens` are the caller's, the others the
    scheduler's. Outputs stay apart from the prompt, so that a resumed request still counts towards ``max_tokens``.

    Attributes:
        request_id: unique among the requests of a scheduler.
        prompt_token_ids: at least one token.
        max_tokens: most tokens to sample, at least 1.
        eos_token_ids: tokens that end the answer; they are part of the output.
        arrival_time: seconds on the engine's clock; earlier requests go first.
        client_id: whose share it counts against under the fair policy.
        extra_keys: what else decides the keys and values, as typed pairs such as ("adapter", "x"); pages are shared
            only where these are equal.
        num_external_tokens: leading tokens whose keys and values the caller writes into the pages before the first
            step, as a prefill worker does for a decode worker; less than the known tokens.
        output_token_ids: tokens sampled so far.
        num_computed_tokens: leading tokens whose keys and values are in the cache.
        num_cached_tokens: those of them that the prefix cache gave at the last admission.
        prefill_until: tokens known when the request was last admitted; up to here it prefills, after it decodes.
        block_table: ids of its pages, in order.
        page_keys, num_committed, chain: keys of its full pages, how many are in the cache, and the last of these.
        num_preemptions: how often it lost its pages.
        num_charged_tokens: leading tokens the policy has been told of.
        key: its place in policy order; smaller goes first.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    max_tokens: int
    eos_token_ids: frozenset[int] = frozenset()
    arrival_time: float = 0.0
    client_id: str = ""
    extra_keys: tuple[tuple[str, str], ...] = ()
    num_external_tokens: int = 0
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    prefill_until: int = 0
    block_table: list[int] = field(default_factory=list)
    page_keys: list[tuple[bytes, bytes]] = field(default_factory=list)
    num_committed: int = 0
    chain: Any = None
    status: Status = Status.WAITING
    num_preemptions: int = 0
    num_charged_tokens: int = 0
    sequence_number: int = -1
    key: tuple[float, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens known so far, prompt and outputs."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def is_decode(self) -> bool:
        """Whether the next token to compute follows a sampled one. The state tells, not the length of the chunk: the
        last chunk of a prompt, or of a replay after a preemption, may be one token long and is a prefill."""
        return self.num_computed_tokens >= self.prefill_until

    def tokens(self, start: int, end: int) -> list[int]:
        """Tokens at positions start…end-1."""
        prompt = self.prompt_token_ids
        known = list(prompt[start:end])
        return known + self.output_token_ids[max(start - len(prompt), 0) : max(end - len(prompt), 0)]

    def take(self, token: int) -> Status | None:
        """Adds a sampled token; returns the status that it ends the request with, or None while it goes on."""
        self.output_token_ids.append(token)
        if token in self.eos_token_ids:
            return Status.FINISHED_STOPPED
        return Status.FINISHED_LENGTH if len(self.output_token_ids) >= self.max_tokens else None


def slots_needed(num_prompt_tokens: int, max_tokens: int) -> int:
    """KV slots a request takes at most: the last sampled token is never fed back, so its KV is never computed."""
    return num_prompt_tokens + max_tokens - 1

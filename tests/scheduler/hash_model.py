"""A model whose next token is a hash of everything it reads through the page table.

A wrong page, slot, position, order, or a page written by somebody else changes the output, exactly and fast. It takes
the same tensors as the kernels.
"""

from __future__ import annotations

import hashlib

from chunkattn.scheduler import Chunk, PagePool, Request, ScheduledBatch, Scheduler, Status
from chunkattn.serving import Draft, StepMetadata

VOCABULARY = 50
Slot = tuple[int, int, object]  # token, position, what else decides the keys and values


def next_token(tokens: list[int]) -> int:
    """The oracle: no paging, no chunks, no cache, no preemption."""
    digest = hashlib.blake2b(repr(list(enumerate(tokens))).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


def generate(prompt: list[int], max_tokens: int, eos: frozenset[int]) -> list[int]:
    """All tokens the oracle samples."""
    tokens: list[int] = []
    while len(tokens) < max_tokens and not (tokens and tokens[-1] in eos):
        tokens.append(next_token(prompt + tokens))
    return tokens


def expected(request: Request) -> list[int]:
    """What a request must come to."""
    return generate(list(request.prompt_token_ids), request.max_tokens, request.eos_token_ids)


class HashModel:
    """An executor; its cache holds one (token, position, extra keys) triple per slot."""

    def __init__(self, num_pages: int, page_size: int, scheduler: Scheduler | None = None) -> None:
        """With a scheduler given, every write is checked to hit a page that nobody else can read."""
        self.page_size = page_size
        self.scheduler = scheduler
        self.cache: list[Slot | None] = [None] * (num_pages * page_size)
        self.computed: dict[tuple[str, int, int], int] = {}  # (request, attempt, position) -> times
        self.num_accepted = 0

    def __call__(self, batch: ScheduledBatch) -> dict[str, int | list[int]]:
        if self.scheduler is not None:  # what nobody holds and nobody can find may be gone
            for page in free_pages(self.scheduler.pool):
                if self.scheduler.pool._content[page] is None:
                    self.poison(page)
        drafts = {chunk.request.request_id: guess(chunk) for chunk in batch.chunks if chunk.num_drafts}
        step = StepMetadata.of(batch, self.page_size, drafts=drafts)
        ids, positions, slots = (t.tolist() for t in (step.input_ids, step.positions, step.slot_mapping))
        starts = step.attention.cu_seqlens_q.tolist()
        rows = iter(step.logits_indices.tolist())
        result: dict[str, int | list[int]] = {}
        for i, chunk in enumerate(batch.chunks):
            extra = chunk.request.extra_keys
            for row in range(starts[i], starts[i + 1]):
                self.write(chunk, slots[row], (ids[row], positions[row], extra))
            for position in range(chunk.start, chunk.end):
                key = (chunk.request.request_id, chunk.request.num_preemptions, position)
                self.computed[key] = self.computed.get(key, 0) + 1
            if not chunk.samples:
                continue
            table = step.attention.block_table[i].tolist()
            draft = drafts.get(chunk.request.request_id, Draft((), ()))
            wanted = [next(rows) - starts[i] + chunk.start + 1 for _ in range(1 + len(draft.tokens))]
            assert wanted[-1] == int(step.attention.seq_lens[i])
            best = [self.read(table, length, extra) for length in wanted]
            path = draft.accepted(best)
            self.num_accepted += len(path)
            result[chunk.request.request_id] = [best[0], *(best[1 + i] for i in path)] if draft.tokens else best[0]
        return result

    def write(self, chunk: Chunk, slot: int, value: Slot) -> None:
        page = slot // self.page_size
        if self.scheduler is not None and chunk.request.status is Status.RUNNING:
            assert self.scheduler.pool.references[page] == 1, "a shared page is written"
            assert self.scheduler.pool._content[page] is None, "a page that others can find is written"
            assert value[1] >= chunk.request.num_cached_tokens, "a cached token is computed"
        if slot % self.page_size == 0:  # the page's first write: whoever had it before is gone
            self.poison(page)
        self.cache[slot] = value

    def poison(self, page: int) -> None:
        self.cache[page * self.page_size : (page + 1) * self.page_size] = [None] * self.page_size

    def read(self, pages: list[int], seq_len: int, extra: object) -> int:
        seen = [self.cache[pages[p // self.page_size] * self.page_size + p % self.page_size] for p in range(seq_len)]
        return next_token([-1 if s is None or s[1:] != (p, extra) else s[0] for p, s in enumerate(seen)])


def free_pages(pool: PagePool) -> list[int]:
    """Those that were handed out before."""
    return [*pool._blank, *pool._remembered]


def guess(chunk: Chunk) -> Draft:
    """A chain of guesses of which the first few are right."""
    tokens = chunk.request.tokens(0, chunk.end)
    right = (len(tokens) * 7 + len(chunk.request.request_id)) % (chunk.num_drafts + 2)
    guesses: list[int] = []
    for i in range(chunk.num_drafts):
        true = next_token(tokens + guesses)
        guesses.append(true if i < right else (true + 1) % VOCABULARY)
    return Draft(tuple(guesses), tuple(range(-1, len(guesses) - 1)))

"""A model whose next token is a hash of everything it reads through the page table.

A wrong page, slot, position, order, or a page written by somebody else changes the output, exactly and fast. It takes
the same tensors as the kernels.
"""

from __future__ import annotations

import hashlib

from chunkattn.scheduler import ScheduledBatch

VOCABULARY = 50


def next_token(tokens: list[int]) -> int:
    """The oracle: no paging, no chunks, no preemption."""
    digest = hashlib.blake2b(repr(list(enumerate(tokens))).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


def generate(prompt: list[int], max_tokens: int, eos: frozenset[int]) -> list[int]:
    """All tokens the oracle samples."""
    tokens: list[int] = []
    while len(tokens) < max_tokens and not (tokens and tokens[-1] in eos):
        tokens.append(next_token(prompt + tokens))
    return tokens


class HashModel:
    """An executor; its cache holds one (token, position) pair per slot."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.cache: list[tuple[int, int] | None] = [None] * (num_pages * page_size)
        self.computed: dict[tuple[str, int, int], int] = {}  # (request, attempt, position) -> times

    def __call__(self, batch: ScheduledBatch) -> dict[str, int]:
        step = batch.to_metadata(self.page_size)
        ids, positions = step.input_ids.tolist(), step.positions.tolist()
        for token, position, slot in zip(ids, positions, step.slot_mapping.tolist(), strict=True):
            if slot % self.page_size == 0:  # the page's first write: whoever had it before is gone
                self.cache[slot : slot + self.page_size] = [None] * self.page_size
            self.cache[slot] = (token, position)
        starts = step.attention.cu_seqlens_q.tolist()
        sampling = set(step.logits_indices.tolist())
        result = {}
        for i, chunk in enumerate(batch.chunks):
            for position in positions[starts[i] : starts[i + 1]]:
                key = (chunk.request.request_id, chunk.request.num_preemptions, position)
                self.computed[key] = self.computed.get(key, 0) + 1
            if starts[i + 1] - 1 in sampling:
                row = step.attention.block_table[i].tolist()
                result[chunk.request.request_id] = self._read(row, int(step.attention.seq_lens[i]))
        return result

    def _read(self, pages: list[int], seq_len: int) -> int:
        seen = [self.cache[pages[p // self.page_size] * self.page_size + p % self.page_size] for p in range(seq_len)]
        return next_token([-1 if pair is None or pair[1] != p else pair[0] for p, pair in enumerate(seen)])

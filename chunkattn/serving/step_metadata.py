"""A scheduled step as the tensors that models and kernels take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chunkattn.scheduler import Chunk, ScheduledBatch
from chunkattn.serving.drafts import NO_DRAFT, Draft
from chunkattn.types import Batch

_WORD = 32  # tokens in a word of a tree mask


@dataclass(frozen=True)
class StepMetadata:
    """A step as tensors.

    Attributes:
        input_ids: [T] int64, the new tokens, requests one after another; a decode's drafts follow its token.
        positions: [T] int64, their positions in their text; guesses of different branches may share one.
        slot_mapping: [T] int64, page * page_size + offset of each new token.
        attention: int32 lengths and page tables, as the operators take them.
        logits_indices: [n] int64, last row of every chunk that samples, and the rows of its drafts.
        tree_mask: int32 [T, words] where drafts branch, else None.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    attention: Batch
    logits_indices: Tensor
    tree_mask: Tensor | None = None

    @classmethod
    def of(
        cls,
        batch: ScheduledBatch,
        page_size: int,
        device: torch.device | str = "cpu",
        drafts: Mapping[str, Draft] | None = None,
    ) -> StepMetadata:
        """Builds the step's tensors; one host-to-device copy per tensor, no sync.

        Args:
            batch: the step.
            page_size: tokens per page of the cache.
            device: of the result.
            drafts: guesses by request id, at most ``num_drafts`` of each chunk.
        """
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        lengths: list[int] = []
        ends: list[int] = []
        logits: list[int] = []
        for chunk in batch.chunks:
            draft = drafts.get(chunk.request.request_id, NO_DRAFT) if drafts else NO_DRAFT
            start, pages, extra = chunk.start, chunk.block_table, len(draft.tokens)
            if chunk.num_tokens == 1 and not extra:  # most chunks of most steps
                ids.append(_token(chunk))
                positions.append(start)
                slots.append(pages[start // page_size] * page_size + start % page_size)
            else:
                end = chunk.end + extra
                ids += chunk.request.tokens(start, chunk.end)
                ids += draft.tokens
                positions += range(start, chunk.end)
                positions += [chunk.end - 1 + depth for depth in draft.depths]
                slots += [pages[p // page_size] * page_size + p % page_size for p in range(start, end)]
            lengths.append(chunk.num_tokens + extra)
            ends.append(start + lengths[-1])
            if chunk.samples:
                logits += range(len(ids) - 1 - extra, len(ids))
        masked = drafts is not None and any(draft.branches for draft in drafts.values())
        return cls(
            input_ids=_int64(ids, device),
            positions=_int64(positions, device),
            slot_mapping=_int64(slots, device),
            attention=Batch.from_lists(lengths, ends, [chunk.block_table for chunk in batch.chunks], device=device),
            logits_indices=_int64(logits, device),
            tree_mask=_tree_mask(batch, drafts, max(lengths), device) if masked and drafts else None,
        )


def _token(chunk: Chunk) -> int:
    request, at = chunk.request, chunk.start - len(chunk.request.prompt_token_ids)
    return request.output_token_ids[at] if at >= 0 else request.prompt_token_ids[chunk.start]


def _tree_mask(batch: ScheduledBatch, drafts: Mapping[str, Draft], longest: int, device: torch.device | str) -> Tensor:
    """A draft sees the known token and the guesses it follows; other rows see all that causality lets them."""
    words = -(-longest // _WORD)
    rows: list[list[int]] = []
    for chunk in batch.chunks:
        rows += [[-1] * words] * chunk.num_tokens
        draft = drafts.get(chunk.request.request_id, NO_DRAFT)
        seen: list[int] = []
        for i, parent in enumerate(draft.parents):
            # New token 0 of the request is the known one, guess i is new token i + 1.
            seen.append((1 if parent < 0 else seen[parent]) | 1 << (i + 1))
            rows.append([_signed(seen[-1] >> _WORD * word & 0xFFFFFFFF) for word in range(words)])
    return torch.tensor(rows, dtype=torch.int32, device=device)


def _signed(word: int) -> int:
    return word - (1 << _WORD) if word >> (_WORD - 1) else word


def _int64(values: Sequence[int], device: torch.device | str) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)

"""What a batch's mask says, in the form the operators need: where each row's keys begin and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from chunkattn.errors import UnsupportedError


def key_spans(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """transformers' mask function of this implementation.

    Args:
        batch_size: rows B of the batch.
        q_length, q_offset: the step's tokens of a row and the position of their first.
        kv_length, kv_offset: slots of the cache and the position of the first.
        mask_function: (batch, head, query position, key position) -> visible; it has to show every query one run of
            keys that ends at itself, or everything. Layers compute it from their own `is_causal` and `sliding_window`
            and compare what the last query sees.
        attention_mask: bool [B, positions], False = padding; a row's tokens have to be one run. Queries of padding
            after them are meaningless.

    Returns:
        int32 [B, 1, 1, 3]: first slot and end of each row's keys, and the first slot that its last query sees; None
        where every key is valid and the last query sees all. Of four dimensions because transformers passes such a
        mask on as it is wherever it meets it again.

    Raises:
        UnsupportedError: another mask, or padding among a row's tokens.
    """
    end = int(q_offset) + q_length - kv_offset
    seen_from = torch.zeros(batch_size, dtype=torch.long)
    if mask_function is not None:
        queries = torch.tensor([int(q_offset), int(q_offset) + q_length - 1])
        seen_from = _first_seen(mask_function, batch_size, queries, torch.arange(kv_offset, kv_offset + kv_length))
    begin = torch.zeros_like(seen_from)
    valid = None if attention_mask is None else attention_mask[:, kv_offset : kv_offset + end].bool()
    if end == kv_length and not bool(seen_from.any()) and (valid is None or bool(valid.all())):
        return None
    if valid is not None:
        begin = valid.int().argmax(dim=1)
        # Rows after the run are padding of this step: they see whatever they see, and nobody reads them.
        if bool(((valid[:, 1:] & ~valid[:, :-1]).sum(1) + valid[:, 0] > 1).any()):
            raise UnsupportedError("attention_mask: expected one run of tokens in a row, got padding among them")
    spans = torch.stack([begin, torch.full_like(begin, end), seen_from.to(begin.device)], dim=1)
    return spans.to(torch.int32)[:, None, None]


def _first_seen(mask_function: Callable[..., Any], batch_size: int, queries: Tensor, keys: Tensor) -> Tensor:
    """int64 [B], the first slot that the last query sees.

    Args:
        queries: the first and the last one's position.
        keys: positions of the slots.

    Raises:
        UnsupportedError: one of the two sees something else than a run that ends at itself, and not everything.
    """
    row = torch.arange(batch_size)[:, None, None]
    try:
        seen = torch.as_tensor(mask_function(row, torch.zeros_like(row), queries[:, None], keys))
    except (RuntimeError, IndexError, TypeError) as error:
        raise UnsupportedError(
            f"mask_function: expected a causal or sliding mask, got one that needs {error}"
        ) from None
    seen = seen.cpu().expand(batch_size, 2, len(keys))
    if not bool(seen.all()):
        runs = (seen[..., 1:] & ~seen[..., :-1]).sum(-1) + seen[..., 0]
        last = torch.where(seen, keys, -1).amax(-1)
        if bool((runs > 1).any()) or bool((last != queries.clamp(max=int(keys[-1]))).any()):
            raise UnsupportedError("mask_function: expected a causal or sliding mask, got another")
    return seen[:, 1].int().argmax(dim=-1)

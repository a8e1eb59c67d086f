"""What a batch's attention mask says, in the form the operators need: where each row's keys begin and end."""

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
        mask_function: (batch, head, query position, key position) -> visible; it has to be causal, with or without a
            sliding window, or to show everything. What it shows is computed from `is_causal` and `sliding_window`,
            which the model passes to every layer.
        attention_mask: bool [B, positions], False = padding; a row's tokens have to be one run. Queries of padding
            after them are meaningless.

    Returns:
        int32 [B, 1, 1, 2], first slot and end of each row's keys; None where all are valid. Of four dimensions because
        transformers passes such a mask on as it is wherever it meets it again.

    Raises:
        UnsupportedError: another mask, or padding among a row's tokens.
    """
    if mask_function is not None:
        _check_shape(mask_function, q_length, kv_length, q_offset, kv_offset)
    end = int(q_offset) + q_length - kv_offset
    if attention_mask is None:
        if end == kv_length:
            return None
        return torch.tensor([[[[0, end]]]] * batch_size, dtype=torch.int32)
    valid = attention_mask[:, kv_offset : kv_offset + end].bool()
    if end == kv_length and bool(valid.all()):
        return None
    begin = valid.int().argmax(dim=1)
    if bool(((valid[:, 1:] & ~valid[:, :-1]).sum(1) + valid[:, 0] > 1).any()):
        raise UnsupportedError("attention_mask: expected one run of tokens in a row, got padding among them")
    # Rows after the run are padding of this step: they see whatever they see, and nobody reads them.
    return torch.stack([begin, torch.full_like(begin, end)], dim=1).to(torch.int32)[:, None, None]


def _check_shape(
    mask_function: Callable[..., Any], q_length: int, kv_length: int, q_offset: int | Tensor, kv_offset: int
) -> None:
    """The first and the last query have to see one run of keys that ends at themselves, or all of them."""
    first = int(q_offset)
    queries = torch.tensor([first, first + q_length - 1])[:, None]
    keys = torch.arange(kv_offset, kv_offset + kv_length)[None, :]
    zero = torch.zeros((), dtype=torch.long)
    try:
        seen = torch.as_tensor(mask_function(zero, zero, queries, keys)).expand(2, kv_length)
    except (RuntimeError, IndexError, TypeError) as error:
        raise UnsupportedError(
            f"mask_function: expected a causal or sliding mask, got one that needs {error}"
        ) from None
    if bool(seen.all()):
        return
    runs = (seen[:, 1:] & ~seen[:, :-1]).sum(1) + seen[:, 0]
    last = torch.where(seen, keys, -1).amax(1)
    if bool((runs > 1).any()) or not torch.equal(last, torch.minimum(queries[:, 0], keys[0, -1])):
        raise UnsupportedError("mask_function: expected a causal or sliding mask, got another")

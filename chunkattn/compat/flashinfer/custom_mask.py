"""FlashInfer's custom masks as chunkattn's tree masks."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn.errors import UnsupportedError

_WORD = 32


def unpack_bits(packed: Tensor, counts: list[int]) -> Tensor:
    """Bool mask of bytes whose bits run from the lowest up; each request begins at a byte.

    Args:
        packed: uint8.
        counts: bits of each request.
    """
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bits = (packed[:, None] >> shifts & 1).bool().flatten()
    pieces, start = [], 0
    for count in counts:
        pieces.append(bits[start : start + count])
        start += -(-count // 8) * 8
    return torch.cat(pieces)


def tree_mask(mask: Tensor, q_lens: list[int], kv_lens: list[int]) -> Tensor:
    """Packed int32 words [T, words] of a mask.

    A tree mask decides over a request's new tokens and always shows its history, so that the custom mask has to.

    Args:
        mask: bool, each request's [q_len, kv_len] flattened, one after another.
        q_lens, kv_lens: of the requests.

    Raises:
        UnsupportedError: a row hides a key older than the request's new tokens.
        ValueError: a mask of another size.
    """
    sizes = [q * kv for q, kv in zip(q_lens, kv_lens)]
    if mask.dim() != 1 or mask.shape[0] != sum(sizes):
        raise ValueError(f"custom_mask: expected [{sum(sizes)}], got shape {list(mask.shape)}")
    words = max(1, -(-max(q_lens, default=0) // _WORD))
    out = torch.zeros(sum(q_lens), words * _WORD, dtype=torch.bool, device=mask.device)
    row = 0
    for part, q_len, kv_len in zip(mask.bool().split(sizes), q_lens, kv_lens):
        seen, history = part.view(q_len, kv_len), kv_len - q_len
        if history > 0 and not bool(seen[:, :history].all()):
            raise UnsupportedError(
                "custom_mask: expected every row to see its request's history; a hidden key can't be honoured"
            )
        new = seen[:, max(history, 0) :]
        out[row : row + q_len, q_len - new.shape[1] : q_len] = new
        row += q_len
    weights = torch.tensor([1 << bit for bit in range(_WORD - 1)] + [-(1 << _WORD - 1)], device=mask.device)
    return (out.view(-1, words, _WORD) * weights).sum(-1).to(torch.int32)

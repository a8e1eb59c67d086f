"""Token ids for the requests of a trace, which has lengths and prefix hashes only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from chunkattn.scheduler import Request
from chunkattn.simulation.trace import TraceRequest

_SPAN = 1 << 32  # ids apart of any two prompts; more than any prompt has tokens


class BlockTokens(Sequence[int]):
    """A prompt of which equal hash ids are equal tokens; made where they are looked at.

    With a vocabulary the ids are spread over it, for a model; without, every block has ids of its own.
    """

    __slots__ = ("_block", "_hash_ids", "_length", "_vocabulary")

    def __init__(self, hash_ids: Sequence[int], block: int, length: int, vocabulary: int | None = None) -> None:
        self._hash_ids = hash_ids
        self._block = block
        self._length = length
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, int):
            return self._tokens(range(self._length)[index], range(self._length)[index] + 1)[0]
        start, stop, step = index.indices(self._length)
        return self._tokens(start, stop)[::step]

    def _tokens(self, start: int, stop: int) -> list[int]:
        tokens: list[int] = []
        while start < stop:
            at, offset = divmod(start, self._block)
            count = min(stop - start, self._block - offset)
            first = self._hash_ids[at] * _SPAN + offset
            tokens += range(first, first + count)
            start += count
        if self._vocabulary is None:
            return tokens
        # A linear congruence is cheap, repeatable and no text that any model has seen.
        return [(token * 6364136223846793005 + 1442695040888963407 >> 33) % self._vocabulary for token in tokens]


def to_requests(trace: Sequence[TraceRequest], vocabulary: int | None = None) -> list[Request]:
    """Requests that ask for exactly the tokens of a trace.

    Args:
        trace: with arrival times.
        vocabulary: ids are below it; None for a simulation, where ids are only compared.
    """
    shared = max((hash_id for request in trace for hash_id in request.hash_ids), default=-1) + 1
    requests = []
    for number, request in enumerate(trace):
        length = request.num_prompt_tokens
        prompt: Sequence[int]
        if request.hash_ids or vocabulary is not None:
            block = request.block if request.hash_ids else length
            prompt = BlockTokens(request.hash_ids or (shared + number,), block, length, vocabulary)
        else:
            prompt = range((shared + number) * _SPAN, (shared + number) * _SPAN + length)
        requests.append(
            Request(
                str(number),
                prompt,
                request.num_output_tokens,
                arrival_time=request.arrival,
                client_id=request.client,
            )
        )
    return requests

"""Bitwise laws of the operator: what must not change a single bit of the result.

Each law takes ``attend``, anything that runs a batch and returns (out, lse), so that an engine can put its own
integration to the test; :func:`operator` wraps this library's. A broken law raises AssertionError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor

from chunkattn.testing.builder import build
from chunkattn.testing.case import AttentionCase
from chunkattn.testing.compare import assert_bitwise_equal
from chunkattn.testing.inputs import AttentionInputs

State = tuple[Tensor, Tensor]
Attend = Callable[[AttentionInputs], State]


class AttendInto(Protocol):
    """Like ``Attend``, writing into given buffers."""

    def __call__(
        self,
        inputs: AttentionInputs,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        workspace: Tensor | None = None,
    ) -> State: ...


def operator(backend: str | None = None) -> AttendInto:
    """:func:`chunkattn.attention` with one backend, as the laws want it."""
    import chunkattn

    def attend(
        inputs: AttentionInputs,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        workspace: Tensor | None = None,
    ) -> State:
        state = chunkattn.attention(
            *inputs.batch(),
            **inputs.options(),
            return_lse=True,
            out=out,
            lse=lse,
            workspace=workspace,
            backend=backend,
        )
        return cast(State, state)

    return attend


def assert_same_state(actual: State, expected: State, context: str) -> None:
    """Both tensors of (out, lse) bit for bit."""
    assert_bitwise_equal(actual[0], expected[0], name="out", context=context)
    assert_bitwise_equal(actual[1], expected[1], name="lse", context=context)


def check_repeatable(attend: Attend, inputs: AttentionInputs, repeats: int = 2) -> None:
    """The same call gives the same bits."""
    first = attend(inputs)
    for _ in range(repeats - 1):
        assert_same_state(attend(inputs), first, f"{inputs.case}: second call: ")


def check_page_order(attend: Attend, case: AttentionCase, device: torch.device | str = "cpu") -> None:
    """The same keys in other physical pages give the same bits."""
    first = attend(build(case, device=device, page_seed=0))
    for page_seed in (1, 2):
        moved = attend(build(case, device=device, page_seed=page_seed))
        assert_same_state(moved, first, f"{case}: pages moved: ")


def check_dead_memory(attend: Attend, case: AttentionCase, device: torch.device | str = "cpu") -> None:
    """What unread memory holds does not matter: zeros, NaN, infinities, random bits."""
    first = attend(build(case, device=device, poison="zero"))
    for poison in ("nan", "inf", "garbage"):
        other = attend(build(case, device=device, poison=poison))  # type: ignore[arg-type]
        assert_same_state(other, first, f"{case}: dead memory holding {poison}: ")


def check_outputs_overwritten(attend: AttendInto, inputs: AttentionInputs) -> None:
    """Outputs are written in full, whatever they held: zeros or NaN."""
    first = attend(inputs)
    for fill in (0.0, float("nan"), float("inf")):
        out, lse = inputs.empty_state(fill)
        returned = attend(inputs, out=out, lse=lse)
        if returned[0].data_ptr() != out.data_ptr() or returned[1].data_ptr() != lse.data_ptr():
            raise AssertionError(f"{inputs.case}: expected the given out and lse to be returned")
        assert_same_state((out, lse), first, f"{inputs.case}: outputs prefilled with {fill}: ")


def check_workspace_contents(attend: AttendInto, inputs: AttentionInputs, num_bytes: int) -> None:
    """The workspace needs no clearing: zeros, NaN patterns and all ones give the same bits.

    Args:
        attend: the operator.
        inputs: the batch.
        num_bytes: size of the workspace to pass.
    """
    first = attend(inputs)
    for byte in (0x00, 0xFF, 0x7F, 0xA5):
        workspace = torch.full((num_bytes,), byte, dtype=torch.uint8, device=inputs.q.device)
        other = attend(inputs, workspace=workspace)
        assert_same_state(other, first, f"{inputs.case}: workspace holding 0x{byte:02X}: ")


def check_chunking(attend: Attend, inputs: AttentionInputs, chunk_sizes: Sequence[int] = (1, 7, 64, 512)) -> None:
    """Invariant mode: rows do not depend on how a prompt was cut into chunks.

    Every chunk is a request of one batch (chunks have each other as neighbours), and the chunks of the largest
    size also run alone, call by call, as an engine would.

    Args:
        attend: the operator.
        inputs: one or more causal requests, in invariant mode.
        chunk_sizes: tokens a chunk; the whole prompt is what they are compared with.
    """
    whole = attend(inputs)
    q_lens = inputs.case.q_lens
    if not any(q_lens):
        return
    for size in chunk_sizes:
        pieces = [
            (request, first, min(first + size, q_len))
            for request, q_len in enumerate(q_lens)
            for first in range(0, q_len, size)
        ]
        cut = attend(inputs.recut(pieces))
        assert_same_state(cut, _rows(whole, sum(q_lens)), f"{inputs.case}: chunks of {size} in one batch: ")
    largest = max(chunk_sizes)
    states = []
    for request, q_len in enumerate(q_lens):
        for first in range(0, q_len, largest):
            states.append(attend(inputs.recut([(request, first, min(first + largest, q_len))])))
    joined = (torch.cat([s[0] for s in states]), torch.cat([s[1] for s in states]))
    assert_same_state(joined, _rows(whole, sum(q_lens)), f"{inputs.case}: chunks of {largest} call by call: ")


def check_neighbours(attend: Attend, inputs: AttentionInputs, paddings: Sequence[int] = (0, 1, 37)) -> None:
    """Invariant mode: a request's rows do not depend on the others, on their order, or on padding.

    Each request runs alone, with padding, in the reversed batch, and beside copies of itself.
    """
    together = attend(inputs)
    starts = inputs.cu_seqlens_q.tolist()
    q_lens = inputs.case.q_lens
    everyone = [(request, 0, q_len) for request, q_len in enumerate(q_lens)]
    for padding in paddings:
        backwards = attend(inputs.recut(everyone[::-1], padding=padding))
        place = 0
        for request, _, q_len in everyone[::-1]:
            mine = (together[0][starts[request] :][:q_len], together[1][starts[request] :][:q_len])
            there = (backwards[0][place:][:q_len], backwards[1][place:][:q_len])
            assert_same_state(there, mine, f"{inputs.case}: request {request}, batch reversed, padding {padding}: ")
            place += q_len
    for piece in everyone:
        request, _, q_len = piece
        mine = (together[0][starts[request] :][:q_len], together[1][starts[request] :][:q_len])
        for copies in (1, 2, 33):
            state = _rows(attend(inputs.recut([piece] * copies)), q_len)
            assert_same_state(state, mine, f"{inputs.case}: request {request} among {copies} of its kind: ")


def _rows(state: State, count: int) -> State:
    return state[0][:count], state[1][:count]

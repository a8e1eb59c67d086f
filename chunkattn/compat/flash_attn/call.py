"""What FlashAttention's functions share: their arguments turned into one call of `chunkattn.attention`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

import chunkattn
from chunkattn.compat.contiguous_kv import PagedView, check_contents
from chunkattn.compat.refusals import foreign_names, refuse
from chunkattn.compat.scheduler_metadata import SchedulerMetadata
from chunkattn.compat.two_sided_alibi import check_counts, two_sided_attention

Window = Sequence[int | None]
T = TypeVar("T")
_OPTIONS = {
    "window": "window_size",
    "sinks": "s_aux",
    "k_scale": "k_descale",
    "v_scale": "v_descale",
    "plan": "scheduler_metadata",
}


@dataclass(frozen=True)
class AttentionCall:
    """One call of `chunkattn.attention` over a pool, with packed queries; errors blame the arguments of `names`.

    Attributes:
        name: the foreign function, for messages.
        q: [T, Hq, D].
        view, cu_seqlens_q, seq_lens, softmax_scale, causal, softcap, alibi_slopes, sinks: as the operator takes them.
        window, k_descale, v_descale, num_splits, plan: as the foreign function does.
        names: an operator's argument -> the foreign one that it was made of.
    """

    name: str
    q: Tensor
    view: PagedView
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    softmax_scale: float
    causal: bool
    window: Window | None
    softcap: float
    alibi_slopes: Tensor | None
    k_descale: Tensor | None
    v_descale: Tensor | None
    sinks: Tensor | None
    num_splits: int
    plan: SchedulerMetadata | None
    names: Mapping[str, str | None]

    def check(self) -> None:
        """Raises what `run` would, without reading the pool: for a caller that writes into it first.

        On the CPU that is everything; on a GPU, where no contents are looked at, what the host knows.
        """
        options = self._options()
        window, two_sided = options["window"], self._two_sided()
        if self.plan is not None:
            self.plan.check(
                heads=(self.q.shape[1], self.view.k_cache.shape[2]),
                causal=options["causal"],
                window=window,
                num_splits=options["num_splits"],
                cu_seqlens_q=self.cu_seqlens_q,
                seq_lens=self.seq_lens,
            )
        with foreign_names(**_OPTIONS, **self.names):
            # The operator's own checks: the same call with no query.
            chunkattn.attention(self.q[:0], *self.view, torch.zeros_like(self.cu_seqlens_q), self.seq_lens, **options)
            if two_sided:
                check_counts(self.cu_seqlens_q, self.seq_lens)
            if self.q.device.type == "cpu":
                check_contents(
                    self.view, self.cu_seqlens_q, self.seq_lens, num_tokens=self.q.shape[0], window_left=window[0]
                )

    def run(self, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """out [T, Hq, Dv], the given one if there is one, and lse [Hq, T]."""
        options = self._options()
        two_sided = self._two_sided()
        with foreign_names(**_OPTIONS, **self.names):
            if two_sided:
                del options["causal"]
                result, lse = two_sided_attention(self.q, self.view, self.cu_seqlens_q, self.seq_lens, **options)
                return result if out is None else out.copy_(result), lse.t().contiguous()
            lse = torch.empty(self.q.shape[1], self.q.shape[0], dtype=torch.float32, device=self.q.device)
            result = chunkattn.attention(  # type: ignore[assignment]
                self.q,
                *self.view,
                self.cu_seqlens_q,
                self.seq_lens,
                plan=self.plan,
                out=out,
                lse=lse.t(),
                **options,
            )
        return result, lse

    def _options(self) -> dict[str, Any]:
        """What every call of the operator takes."""
        if self.plan is not None and not isinstance(self.plan, SchedulerMetadata):
            why = "expected what get_scheduler_metadata of this module returns"
            raise refuse(self.name, "scheduler_metadata", why)
        return {
            "softmax_scale": float(self.softmax_scale),
            "causal": bool(self.causal),
            "window": window_of(self.window),
            "softcap": float(self.softcap),
            "alibi_slopes": self.alibi_slopes,
            "sinks": None if self.sinks is None else self.sinks.float(),
            "k_scale": one_scale(self.name, "k_descale", self.k_descale),
            "v_scale": one_scale(self.name, "v_descale", self.v_descale),
            "num_splits": self.num_splits if self.num_splits > 0 else None,
        }

    def _two_sided(self) -> bool:
        """Whether ALiBi has keys on the right of some query."""
        if self.alibi_slopes is None or self.causal or window_of(self.window)[1] == 0:
            return False
        two_sided = bool((torch.diff(self.cu_seqlens_q) > 1).any())
        if two_sided and self.plan is not None:
            raise refuse(self.name, "scheduler_metadata", "expected None with alibi_slopes and causal=False")
        return two_sided


def window_of(window: Window | None) -> tuple[int, int]:
    if window is not None and len(window) != 2:
        raise ValueError(f"window_size: expected (left, right), got {window}")
    left, right = (-1, -1) if window is None else (-1 if side is None else int(side) for side in window)
    return max(left, -1), max(right, -1)


def one_table(block_table: Tensor | None, page_table: Tensor | None) -> tuple[str, Tensor | None]:
    """The table and which of its two names it came by."""
    if block_table is not None and page_table is not None:
        raise ValueError("page_table: expected None with block_table, its other name, got a tensor")
    return ("page_table", page_table) if block_table is None else ("block_table", block_table)


def given(argument: str, value: T | None) -> T:
    if value is None:
        raise ValueError(f"{argument}: expected a value, got None")
    return value


def one_scale(name: str, argument: str, descale: Tensor | None) -> Tensor | None:
    """One scale for the pool, [] or [Hkv]; theirs are [B, Hkv]."""
    if descale is None:
        return None
    if descale.dim() == 2:
        if descale.stride(0) and descale.shape[0] > 1 and not bool((descale == descale[:1]).all()):
            raise refuse(name, argument, "expected the same scales for every sequence, as the pool is shared")
        descale = descale[0]
    return (descale.reshape(()) if descale.numel() == 1 else descale).float()

"""What every backend offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from chunkattn.args import AppendArgs, AttentionArgs, MergeArgs, PlanArgs
from chunkattn.types import AttentionSpec


@dataclass(frozen=True)
class Support:
    """Whether a problem can be served: truthy, or carries every reason why not."""

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons


class Backend(Protocol):
    """A module with these functions. Arguments have been validated; shapes are those of `chunkattn.api`.

    A backend that builds or loads something on first use may also have ``prepare(spec) -> Support``: asked once, after
    `supports`, when the backend is about to be taken; a refusal there lets the next one serve.

    A backend with settings that can be tuned also has ``settings_space(spec)`` (dictionaries of integers, the default
    first), ``mix_class(spec, q_lens, kv_lens)``, ``tuning_key(spec, mix_class)``, ``planned(spec, q_lens, kv_lens)`` (a
    `WorkSpec` and the plan's words) and the context manager ``with_settings(values)``. It looks measured settings up in
    `chunkattn.planning.measured` by itself. One whose settings choose a kernel has ``kernel_of(values)`` and
    ``compiled(args, gpu)`` (registers, spilled and shared bytes, for a GPU that need not be there) too.

    Each function writes what its op declares as mutated and nothing else.
    """

    def supports(self, spec: AttentionSpec) -> Support:
        """Whether this backend serves the problem here and now."""

    def describe(self, spec: AttentionSpec) -> str:
        """The configuration it would use, in a few words."""

    def workspace_bytes(self, spec: AttentionSpec, max_tokens: int, max_seq_len: int, num_splits: int) -> int:
        """A workspace of this many bytes suffices for every call within these maxima."""

    def plan_words(self, num_requests: int) -> int:
        """Length of a plan (int64 words)."""

    def plan_workspace_bytes(self, args: PlanArgs, max_tokens: int | None, max_seq_len: int | None) -> int:
        """Workspace bytes that suffice for the plan in `args.words`."""

    def plan(self, args: PlanArgs) -> None: ...

    def attention(self, args: AttentionArgs) -> None: ...

    def repeat_attention(self, args: AttentionArgs) -> bool:
        """Runs a call that differs from an earlier one in nothing that validation or the choice of a backend looks at.

        False, and nothing done, if there was no such call. `args` have not been validated. This is how every layer of
        a step but the first skips most of the call's overhead; a backend without such a memory returns False.
        """

    def append_kv(self, args: AppendArgs) -> None: ...

    def repeat_append_kv(self, args: AppendArgs) -> bool:
        """As `repeat_attention`."""

    def merge_states(self, args: MergeArgs) -> None: ...

    def copy_pages(self, cache: Tensor, source: Tensor, target: Tensor) -> None: ...

    def gather_pages(self, cache: Tensor, pages: Tensor, out: Tensor) -> None: ...

    def scatter_pages(self, block: Tensor, cache: Tensor, pages: Tensor) -> None: ...

"""Times settings of a backend on batches of random data, and believes no time without a right answer.

Nothing of the user's is touched: queries, pools and outputs are made here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import chunkattn
from chunkattn.bench import gate, machine, work
from chunkattn.bench.case import BenchCase
from chunkattn.bench.timing import window
from chunkattn.testing import AttentionCase, AttentionInputs
from chunkattn.tuning.search import Refused

_MOST_SETS = 3
_MAX_BYTES = 1 << 30


@dataclass
class _Step:
    """One set of inputs, and what the right answer is: the default's, proven on the first set."""

    inputs: AttentionInputs
    out: Tensor
    answer: gate.Expected | None = None

    @classmethod
    def of(cls, inputs: AttentionInputs) -> _Step:
        rows, heads, width = inputs.q.shape[0], inputs.q.shape[1], inputs.v_cache.shape[3]
        return cls(inputs, inputs.q.new_full((rows, heads, width), math.nan))

    def call(self, backend: str) -> None:
        chunkattn.attention(*self.inputs.batch(), **self.inputs.options(), out=self.out, backend=backend)


@dataclass
class Trials:
    """Settings of one backend, on some cases.

    Attributes:
        backend: its name; `module` its module.
        cases: batches of the first generation.
        others: of the second; the same where there are none.
        settings: candidates, the default first.
        seconds: of a timed window; at least one call.
        device: "cpu" or "cuda".
    """

    backend: str
    module: Any
    cases: Sequence[BenchCase]
    settings: Sequence[Mapping[str, int]]
    others: Sequence[BenchCase] = ()
    seconds: float = 0.02
    device: str = "cpu"
    _steps: list[list[_Step]] = field(default_factory=list)
    _turn: int = 0
    _generation: int = 0
    _admitted: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> int:
        """The next generation of batches, with other data on other pages: where pages happen to lie is worth up to a
        tenth of a memory-bound call.

        Returns:
            How many batches there are.

        Raises:
            Refused: the default's answer is wrong.
        """
        self._generation += 1
        self._admitted.clear()
        self._steps.clear()  # one generation in memory at a time
        cases = self.others if self.others and self._generation > 1 else self.cases
        for case in cases:
            inputs = _input_sets(case.but(seed=case.seed + 104729 * self._generation), self.device)
            self._steps.append([_Step.of(one) for one in inputs])
            for number, step in enumerate(self._steps[-1]):
                if number == 0:
                    self._prove(step)
                with self.module.with_settings(self.settings[0]):
                    step.call(self.backend)
                step.answer = _answer(step.out)
        return len(cases)

    def _prove(self, step: _Step) -> None:
        """The default against eager PyTorch, every row; its answers are what others are compared with from then on."""
        step.call("reference")
        expected = _answer(step.out)
        step.out.fill_(math.nan)
        with self.module.with_settings(self.settings[0]):
            step.call(self.backend)
        try:
            gate.check(step.out, expected)
        except gate.Refused as error:
            raise Refused(f"the default's answer is wrong: {error}") from None

    def measure(self, candidate: int, case: int) -> float:
        """Seconds of a call, the median of a window; its last answer is compared, all of it.

        Raises:
            Refused: a wrong answer, or an error of the backend.
        """
        steps = self._steps[case]
        last = steps[0]

        def before() -> None:
            nonlocal last
            self._turn += 1
            last = steps[self._turn % len(steps)]
            last.out.fill_(math.nan)

        with self.module.with_settings(self.settings[candidate]):
            try:
                if (candidate, case) not in self._admitted:
                    self._admit(candidate, case)
                done = window(
                    lambda: last.call(self.backend),
                    seconds=self.seconds,
                    min_calls=1,
                    before=before,
                    device=torch.device(self.device),
                )
                assert last.answer is not None
                gate.check(last.out, last.answer)
            except gate.Refused as error:
                raise Refused(str(error)) from None
            except (RuntimeError, ValueError) as error:
                raise Refused(f"it failed: {error}") from None
        return done.median_s

    def _admit(self, candidate: int, case: int) -> None:
        """Every set once, untimed: first-use costs, and answers to each."""
        for step in self._steps[case]:
            step.out.fill_(math.nan)
            step.call(self.backend)
            assert step.answer is not None
            gate.check(step.out, step.answer)
        self._admitted.add((candidate, case))


def _answer(out: Tensor) -> gate.Expected:
    return gate.Expected(torch.arange(len(out)), out.cpu().double())


def _input_sets(case: BenchCase, device: str) -> list[AttentionInputs]:
    """Enough sets, each with its own pages, that a rotation over them finds no cache warm."""
    size = max(1, work.count(case).bytes)
    wanted = math.ceil(2 * machine.last_level_cache() / size)
    number = max(1, min(wanted, _MOST_SETS, _MAX_BYTES // size))
    return [random_inputs(case.attention_case(set_index=i), device) for i in range(number)]


def random_inputs(case: AttentionCase, device: str) -> AttentionInputs:
    """Random data on scattered pages that are all in use."""
    source = torch.Generator().manual_seed(case.seed)
    counts = [-(-length // case.page_size) for length in case.kv_lens]
    pages = torch.randperm(max(sum(counts), 1), generator=source).tolist()
    rows = []
    for count in counts:
        rows.append(pages[:count])
        pages = pages[count:]
    batch = chunkattn.Batch.from_lists(case.q_lens, case.kv_lens, rows, device=device)
    # Stored integers use their range.
    spread = 40.0 if case.kv_dtype == torch.int8 else 1.0

    def pool(dim: int) -> Tensor:
        shape = (max(sum(counts), 1), case.page_size, case.num_kv_heads, dim)
        return (torch.randn(shape, generator=source) * spread).to(case.kv_dtype).to(device)

    q = torch.randn(sum(case.q_lens), case.num_q_heads, case.head_dim, generator=source).to(case.dtype)
    scale = torch.tensor(1 / spread, device=device) if case.kv_dtype != case.dtype else None
    caches = pool(case.head_dim), pool(case.value_dim)
    lengths = batch.block_table, batch.cu_seqlens_q, batch.seq_lens
    return AttentionInputs(case, q.to(device), *caches, *lengths, k_scale=scale, v_scale=scale)

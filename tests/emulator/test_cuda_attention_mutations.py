"""Every barrier, wait and fence of the attention kernel is missed if it is gone, or is proved redundant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from chunkattn.testing import AttentionCase, build, laws, row_budget, row_errors

from . import cuda_backend, cuda_runtime, mutation
from .launch import Options, PtxModule
from .session import emulated

cuda_backend.skip_unless_available(cutlass=True)

pytestmark = pytest.mark.full
ATTEND = laws.operator("cuda")
# Prefill and decode tiles, several items a CTA, splits of both classes, an uneven tail, requests without keys.
CASES = {
    "plain": AttentionCase(
        "mutants", (70, 1, 1, 5, 1), (300, 530, 40, 0, 0), num_q_heads=4, num_kv_heads=1, num_splits=2
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_mutation_score(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    inputs = build(CASES[name])
    expected = inputs.expected()
    seen: list[tuple[PtxModule, str]] = []
    with emulated(80) as session:
        launch = session.launch

        def noted(module: PtxModule, kernel: str, *rest: object) -> object:
            if "attention_kernel" in kernel:
                seen.append((module, kernel))
            return launch(module, kernel, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(session, "launch", noted)
        ATTEND(inputs)
    ((original, kernel),) = seen
    module_of = cuda_runtime.CudaLaunches.module

    def run(damaged: PtxModule, options: Options) -> set[str]:
        def module(self: cuda_runtime.CudaLaunches, number: int) -> PtxModule:
            found = module_of(self, number)
            return damaged if kernel in found.kernels else found

        monkeypatch.setattr(cuda_runtime.CudaLaunches, "module", module)
        out, lse = inputs.empty_state()
        try:
            with emulated(80, options, strict=False) as session:
                ATTEND(inputs, out=out, lse=lse)
            wrong = not bool((row_errors(torch.nan_to_num(out, 9e9), expected[0]) <= row_budget(out.dtype)).all())
        except RuntimeError:  # the launch says that it failed; what was found stands in the session
            wrong = True
        found = {finding.kind for launched in session.launches for finding in launched.all_findings}
        return found | ({"wrong numbers"} if wrong else set())

    score = mutation.score(name, kernel, original.ptx, run)
    print(score.describe())
    record_property("mutation_score", score.value)
    assert len(score.caught) >= 20, score.describe()
    assert score.value >= 0.95, score.describe()

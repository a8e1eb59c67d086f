"""What a launch found: findings, counters, and the error that carries them to a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """Something wrong with a kernel that showed in a run.

    Attributes:
        kind: stable name of the rule that was broken (README.md lists them).
        message: what happened; names tensors, distances and the other access of a race.
        where: CTA and warp.
        source: "file:line" of the kernel's source, then what it was inlined into; "" without line info.
        instruction: the PTX statement.
        ptx_line: its line in the PTX text; 0 if the launch was stopped by it.
        count: how often it happened.
    """

    kind: str
    message: str
    where: str = ""
    source: str = ""
    instruction: str = ""
    ptx_line: int = 0
    count: int = 1

    def __str__(self) -> str:
        lines = [f"[{self.kind}] {self.message}"]
        if self.instruction:
            times = f", {self.count} times" if self.count > 1 else ""
            lines.append(f"  at {self.source or 'unknown source line'} ({self.where}{times})")
            lines.append(f"  PTX line {self.ptx_line}: {self.instruction}")
        return "\n".join(lines)


@dataclass(frozen=True)
class LaunchResult:
    """Outcome of one launch.

    Attributes:
        stopped: the finding that ended it early, None if it ran to its end.
        seconds: CPU time of the emulation, which is done by one thread.
    """

    kernel: str
    findings: tuple[Finding, ...]
    stopped: Finding | None
    counters: dict[str, Any] = field(repr=False)
    seconds: float
    seed: int

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        return (*self.findings, self.stopped) if self.stopped else self.findings

    @property
    def kinds(self) -> set[str]:
        """Kinds of everything found; empty for a clean run."""
        return {finding.kind for finding in self.all_findings}

    def require_clean(self) -> LaunchResult:
        """Raises KernelError if anything was found."""
        if self.all_findings:
            raise KernelError(self)
        return self


class KernelError(AssertionError):
    """A kernel broke a rule in the emulator; `result` holds the findings."""

    def __init__(self, result: LaunchResult):
        self.result = result
        shown = "\n".join(str(finding) for finding in result.all_findings[:10])
        more = len(result.all_findings) - 10
        tail = f"\n... and {more} more" if more > 0 else ""
        super().__init__(f"{result.kernel}, seed {result.seed}:\n{shown}{tail}")

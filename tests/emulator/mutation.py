"""Mutation of synchronisation: damage each barrier, wait, fence and commit of a kernel once, see whether it shows.

A site is an instruction of the PTX text. Only sites that the undamaged run executes count. What nobody notices
over all seeds either is redundant there or is a gap of the checks; the caller lists survivors with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .launch import Options, PtxModule


@dataclass(frozen=True)
class Mutator:
    """A way to damage an instruction: its name, the pattern of the statement, the new statement."""

    name: str
    pattern: str
    replacement: str | Callable[[re.Match[str]], str] = ""

    def apply(self, match: re.Match[str]) -> str:
        """The replacement with its guard dropped where the statement is deleted."""
        new = self.replacement(match) if callable(self.replacement) else match.expand(self.replacement)
        return new


def _weaker(match: re.Match[str]) -> str:
    return f"{match['head']}{int(match['count']) + 1};"


_GUARD = r"(?P<guard>@!?%?\w+\s+)?"
_NOTHING = "{ }"  # an empty scope: labels in front of the statement stay valid

MUTATORS = (
    Mutator("delete bar.sync", _GUARD + r"\b(?:bar|barrier)\.(?:cta\.)?sync(?:\.aligned)?\s+[^;]*;", _NOTHING),
    Mutator("delete bar.arrive", _GUARD + r"\b(?:bar|barrier)\.(?:cta\.)?arrive(?:\.aligned)?\s+[^;]*;", _NOTHING),
    Mutator("delete barrier.cluster", _GUARD + r"barrier\.cluster\.(?:arrive|wait)[^;]*;", _NOTHING),
    Mutator("delete cp.async.wait_group", _GUARD + r"cp\.async\.wait_(?:group\s+\d+|all)\s*;", _NOTHING),
    Mutator("weaken cp.async.wait_group", r"(?P<head>cp\.async\.wait_group\s+)(?P<count>\d+)\s*;", _weaker),
    Mutator("delete cp.async.commit_group", _GUARD + r"cp\.async\.commit_group\s*;", _NOTHING),
    Mutator("delete cp.async.mbarrier.arrive", _GUARD + r"cp\.async\.mbarrier\.arrive[^;]*;", _NOTHING),
    Mutator("delete wgmma.wait_group", _GUARD + r"wgmma\.wait_group[^;]*;", _NOTHING),
    Mutator("weaken wgmma.wait_group", r"(?P<head>wgmma\.wait_group\.sync\.aligned\s+)(?P<count>\d+)\s*;", _weaker),
    Mutator("delete wgmma.fence", _GUARD + r"wgmma\.fence[^;]*;", _NOTHING),
    Mutator("delete wgmma.commit_group", _GUARD + r"wgmma\.commit_group[^;]*;", _NOTHING),
    Mutator("delete fence.proxy.async", _GUARD + r"fence\.proxy\.async[^;]*;", _NOTHING),
    Mutator("delete fence.proxy.tensormap", _GUARD + r"fence\.proxy\.tensormap[^;]*;", _NOTHING),
    Mutator("delete fence.mbarrier_init", _GUARD + r"fence\.mbarrier_init[^;]*;", _NOTHING),
    Mutator(
        "delete fence", _GUARD + r"(?:membar\.(?:gl|sys)|fence\.(?:acq_rel|sc)\.(?:gpu|sys|cluster))\s*;", _NOTHING
    ),
    Mutator("delete bulk wait_group", _GUARD + r"cp\.async\.bulk\.wait_group[^;]*;", _NOTHING),
    Mutator("delete bulk commit_group", _GUARD + r"cp\.async\.bulk\.commit_group\s*;", _NOTHING),
    Mutator("delete mbarrier.arrive", _GUARD + r"mbarrier\.arrive[^;]*_\s*,[^;]*;", _NOTHING),
    Mutator(
        "mbarrier wait always true",
        r"mbarrier\.(?:try|test)_wait\S*\s+(?P<p>[%\w]+)\s*,[^;]*;",
        r"setp.eq.u32 \g<p>, 0, 0;",
    ),
)


@dataclass(frozen=True)
class Site:
    """One place to damage: line of the PTX text, and the text after the damage."""

    mutator: str
    line: int
    statement: str
    ptx: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.mutator}, PTX line {self.line}: {self.statement}"


@dataclass
class Score:
    """Outcome for one kernel: which executed sites were noticed, and how."""

    kernel: str
    caught: list[tuple[Site, frozenset[str]]] = field(default_factory=list)
    survived: list[Site] = field(default_factory=list)

    @property
    def sites(self) -> int:
        return len(self.caught) + len(self.survived)

    def describe(self) -> str:
        lines = [f"{self.kernel}: {len(self.caught)} of {self.sites} executed sites caught"]
        return "\n".join([*lines, *(f"  survived: {site}" for site in self.survived)])


def executed_lines(module: PtxModule, kernel: str) -> set[int]:
    """PTX lines whose instruction ran in the last launch."""
    return {line for line, _, _, count in module.profile(kernel) if count}


def sites(ptx: str, executed: set[int]) -> Iterator[Site]:
    """All executed sites of a text, with the damaged text of each."""
    code = re.sub(r"//[^\n]*", lambda match: " " * len(match.group()), ptx)
    for mutator in MUTATORS:
        for match in re.finditer(mutator.pattern, code):
            start = match.start()
            line = code.count("\n", 0, start) + 1
            last = code.count("\n", 0, match.end()) + 1
            if not executed.intersection(range(line, last + 1)):
                continue
            damaged = code[:start] + mutator.apply(match) + code[match.end() :]
            yield Site(mutator.name, line, " ".join(match.group().split())[:100], damaged)


Run = Callable[[PtxModule, Options], set[str]]
"""Runs a module under options; returns the kinds found, with "wrong numbers" for a wrong result."""


def score(name: str, kernel: str, ptx: str, run: Run, seeds: int = 3, limit: int = 20_000_000) -> Score:
    """Damages every executed site of a kernel and runs it until something is noticed.

    Args:
        run: must find nothing on the undamaged text.
        seeds: schedules tried for each site.
        limit: warp instructions after which a damaged kernel counts as never ending.

    Raises:
        AssertionError: the undamaged kernel is not clean.
    """
    module = PtxModule(ptx)
    executed: set[int] = set()
    for seed in range(seeds):
        found = run(module, Options.for_seed(seed))
        assert not found, f"{name} is not clean under seed {seed}: {found}"
        executed |= executed_lines(module, kernel)
    result = Score(name)
    for site in sites(ptx, executed):
        damaged = PtxModule(site.ptx)
        found = set()
        for seed in range(seeds):
            found = run(damaged, Options.for_seed(seed, max_warp_instructions=limit))
            if found:
                break
        if found:
            result.caught.append((site, frozenset(found)))
        else:
            result.survived.append(site)
    return result

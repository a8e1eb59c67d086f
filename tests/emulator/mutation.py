"""Mutation of synchronisation: damage each barrier, wait, fence and commit of a kernel once, see whether it shows.

A site is an instruction of the PTX text. Only sites that the undamaged run executes count. What nobody notices
over all seeds either is redundant there or is a gap of the checks. Redundancy is proved where it can be: a site that
never had anything to do (`PtxModule.idle`), or one that is noticed as soon as the sites that double it are gone as
well. What is left the caller lists with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
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
    Mutator(
        "bar.red without the other warps",
        r"\b(?:bar|barrier)\.(?:cta\.)?red\.(?:or|and)\.pred\s+(?P<p>[%\w]+)\s*,[^;]*,\s*(?P<q>[%\w]+)\s*;",
        r"or.pred \g<p>, \g<q>, \g<q>;",
    ),
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
    """One place to damage: what to put in place of text[begin:end], and what to call it."""

    mutator: str
    line: int
    statement: str
    begin: int = field(repr=False)
    end: int = field(repr=False)
    replacement: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.mutator}, PTX line {self.line}: {self.statement}"

    def overlaps(self, other: Site) -> bool:
        return self.begin < other.end and other.begin < self.end


def damage(code: str, places: Iterable[Site]) -> str:
    """The text with all of the places damaged; they must not overlap."""
    for site in sorted(places, key=lambda site: -site.begin):
        code = code[: site.begin] + site.replacement + code[site.end :]
    return code


@dataclass
class Score:
    """Outcome for one kernel: which executed sites were noticed, and how.

    Attributes:
        caught: sites with the kinds of findings.
        survived: sites that nothing noticed, redundant or not.
        redundant: for those of them that are proved to be redundant, the proof.
    """

    kernel: str
    caught: list[tuple[Site, frozenset[str]]] = field(default_factory=list)
    survived: list[Site] = field(default_factory=list)
    redundant: dict[Site, str] = field(default_factory=dict)

    @property
    def sites(self) -> int:
        return len(self.caught) + len(self.survived)

    @property
    def unexplained(self) -> list[Site]:
        """Survivors without a proof."""
        return [site for site in self.survived if site not in self.redundant]

    @property
    def value(self) -> float:
        """Caught, of what is not proved to be redundant."""
        relevant = len(self.caught) + len(self.unexplained)
        return len(self.caught) / relevant if relevant else 1.0

    def describe(self) -> str:
        counts = f"{len(self.caught)} of {self.sites} executed sites caught, {len(self.redundant)} proved redundant"
        lines = [f"{self.kernel}: {counts}, {len(self.unexplained)} unexplained: {self.value:.1%}"]
        lines += [f"  redundant: {site}\n    {proof}" for site, proof in self.redundant.items()]
        return "\n".join([*lines, *(f"  unexplained: {site}" for site in self.unexplained)])


def executed_lines(module: PtxModule, kernel: str) -> set[int]:
    """PTX lines whose instruction ran in the last launch."""
    return {line for line, _, _, count in module.profile(kernel) if count}


def without_comments(ptx: str) -> str:
    return re.sub(r"//[^\n]*", lambda match: " " * len(match.group()), ptx)


def sites(code: str, executed: set[int]) -> Iterator[Site]:
    """All executed sites of a text without comments."""
    for mutator in MUTATORS:
        for match in re.finditer(mutator.pattern, code):
            line = code.count("\n", 0, match.start()) + 1
            last = code.count("\n", 0, match.end()) + 1
            if not executed.intersection(range(line, last + 1)):
                continue
            statement = " ".join(match.group().split())[:100]
            yield Site(mutator.name, line, statement, match.start(), match.end(), mutator.apply(match))


Run = Callable[[PtxModule, Options], set[str]]
"""Runs a module under options; returns the kinds found, with "wrong numbers" for a wrong result."""


class _Subject:
    """A kernel to damage."""

    def __init__(self, kernel: str, ptx: str, run: Run, seeds: int, limit: int):
        self.kernel, self.run, self.seeds, self.limit = kernel, run, seeds, limit
        self.code = without_comments(ptx)

    def undamaged(self, name: str) -> tuple[set[int], set[int]]:
        """(lines executed, those of them that never had anything to do)."""
        module = PtxModule(self.code)
        executed: dict[int, int] = {}
        idle: dict[int, int] = {}
        for seed in range(self.seeds):
            found = self.run(module, Options.for_seed(seed))
            assert not found, f"{name} is not clean under seed {seed}: {found}"
            for line, times, without_work in module.idle(self.kernel):
                executed[line] = executed.get(line, 0) + times
                idle[line] = idle.get(line, 0) + without_work
        lines = {line for line, times in executed.items() if times}
        return lines, {line for line in lines if idle[line] == executed[line]}

    def findings(self, places: Iterable[Site]) -> set[tuple[str, int]]:
        """(kind, PTX line) of everything found with these places damaged, under seed 0."""
        damaged = PtxModule(damage(self.code, places))
        self.run(damaged, Options(max_warp_instructions=self.limit))
        if damaged.last_result is None:
            return set()
        return {(finding.kind, finding.ptx_line) for finding in damaged.last_result.all_findings}

    def adds_findings(self, site: Site, others: Iterable[list[Site]]) -> tuple[list[Site], tuple[str, int]] | None:
        """Other places without which more is found if the site is gone too, and one such finding."""
        for places in others:
            if any(site.overlaps(place) for place in places):
                continue
            more = self.findings([*places, site]) - self.findings(places)
            more = {finding for finding in more if finding[1]}  # a launch that is stopped has no line
            if more:
                return places, min(more)
        return None

    def notices(self, places: Iterable[Site]) -> set[str]:
        """What is found with these places damaged, under the first seed that finds anything."""
        damaged = PtxModule(damage(self.code, places))
        for seed in range(self.seeds):
            found = self.run(damaged, Options.for_seed(seed, max_warp_instructions=self.limit))
            if found:
                return found
        return set()

    def doubles(self, survivors: list[Site]) -> dict[Site, tuple[list[Site], set[str]]]:
        """Survivors that are noticed once others of them are gone too: those others, and what is found."""
        proofs: dict[Site, tuple[list[Site], set[str]]] = {}
        gone: list[Site] = []  # may be missing together
        for site in survivors:
            others = [other for other in gone if not other.overlaps(site)]
            found = self.notices([*others, site])
            if not found:
                gone = [*others, site] if len(others) == len(gone) else [*gone, site]
                continue
            for other in list(others):  # who of them is needed for that
                fewer = [kept for kept in others if kept is not other]
                found_with_fewer = self.notices([*fewer, site])
                if found_with_fewer:
                    others, found = fewer, found_with_fewer
            for member in (site, *others):
                twins = [kept for kept in (site, *others) if kept is not member]
                proofs.setdefault(member, (twins, found))
        return proofs


def score(name: str, kernel: str, ptx: str, run: Run, seeds: int = 3, limit: int = 20_000_000) -> Score:
    """Damages every executed site of a kernel and runs it until something is noticed.

    Args:
        run: must find nothing on the undamaged text.
        seeds: schedules tried for each site.
        limit: warp instructions after which a damaged kernel counts as never ending.

    Raises:
        AssertionError: the undamaged kernel is not clean.
    """
    subject = _Subject(kernel, ptx, run, seeds, limit)
    executed, idle = subject.undamaged(name)
    result = Score(name)
    for site in sites(subject.code, executed):
        found = subject.notices([site])
        if found:
            result.caught.append((site, frozenset(found)))
        else:
            result.survived.append(site)
    doubled = subject.doubles(result.survived)
    for site in result.survived:
        if site.line in idle:
            result.redundant[site] = "it never had anything to do"
        elif site in doubled:
            twins, found = doubled[site]
            result.redundant[site] = f"without {_lines(twins)} as well: {', '.join(sorted(found))}"
    alike = [site for site, _ in result.caught if site.mutator.startswith("delete")]
    groups = [twins for twins, _ in doubled.values() if len(twins) > 1]
    for site in result.unexplained:
        others = [[other] for other in sorted(alike, key=lambda other: other.mutator != site.mutator)]
        proof = subject.adds_findings(site, [*others, *groups])
        if proof is not None:
            places, (kind, line) = proof
            result.redundant[site] = f"without {_lines(places)} as well: {kind} at line {line}, which is not found else"
    return result


def _lines(places: Iterable[Site]) -> str:
    return "line " + ", ".join(str(place.line) for place in places)

"""The basic blocks of a disassembly, the loops that they form, and the shortest way round a loop.

Reads what `nvdisasm -c` and `cuobjdump -sass` print of one kernel: jumps to labels, or to addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# What waits and issues it, for sm_120 only, stands between an instruction and its semicolon: "&req={4} ?trans2".
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(.*?)(?:\s+[&?].*)?\s*;")
_LEAVES = re.compile(r"\b(BRA|BRX|EXIT|RET|JMP|CALL)\b")
_TARGET = re.compile(r"\b(?:BRA|CALL)\b.*(?:`\((\S+)\)|\b0x([0-9a-f]+))\s*$")
# Jumps that some threads, or none, follow: predicated, by an operand, for warps that have diverged; and calls return.
_GOES_ON = re.compile(r"^@|\bBRA[.\w]*\s+!?U?P\d|\bBRA\.(DIV|CONV)\b|\bCALL\b")


class Blocks:
    """Blocks by number, in the order of the text.

    Attributes:
        code: all instructions.
        spans: of each block, the first instruction and the one after its last.
        before, after: of each block, those that control comes from and goes to.
    """

    def __init__(self, sass: str):
        labels: dict[str, int] = {}
        self.code: list[str] = []
        for line in sass.splitlines():
            if label := re.match(r"^([.$]\S+):$", line.strip()):
                labels[label.group(1)] = len(self.code)
            elif instruction := _INSTRUCTION.match(line):
                labels[f"0x{int(instruction.group(1), 16):x}"] = len(self.code)
                self.code.append(instruction.group(2))
        targets = [labels.get(name) for name in map(_target, self.code)]
        leaves = {place + 1 for place, text in enumerate(self.code) if _LEAVES.search(text)}
        starts = sorted(place for place in {0, *filter(None, targets), *leaves} if place < len(self.code))
        self.spans = list(zip(starts, [*starts[1:], len(self.code)]))
        index = {begin: block for block, (begin, _) in enumerate(self.spans)}
        self.before: list[list[int]] = [[] for _ in self.spans]
        self.after: list[list[int]] = []
        for block, (_, end) in enumerate(self.spans):
            last, target = self.code[end - 1], targets[end - 1]
            after = [] if target is None else [index[target]]
            if (not _LEAVES.search(last) or _GOES_ON.search(last)) and block + 1 < len(self.spans):
                after.append(block + 1)
            self.after.append(after)
            for each in after:
                self.before[each].append(block)

    def text(self, blocks: Iterable[int]) -> list[str]:
        """Their instructions."""
        return [text for block in sorted(blocks) for text in self.code[slice(*self.spans[block])]]

    def loops(self) -> dict[int, set[int]]:
        """Blocks of each natural loop, by the block that it begins with."""
        loops: dict[int, set[int]] = {}
        for head, dominated in enumerate(self._dominated()):
            ends = [block for block in self.before[head] if block in dominated]
            if ends:
                body, open_blocks = {head}, ends
                while open_blocks:
                    block = open_blocks.pop()
                    if block not in body:
                        body.add(block)
                        open_blocks += self.before[block]
                loops[head] = body
        return loops

    def innermost(self, wanted: re.Pattern[str]) -> dict[int, set[int]]:
        """Of the loops that hold such an instruction those with no other such loop inside."""
        loops = {head: body for head, body in self.loops().items() if any(map(wanted.search, self.text(body)))}
        return {head: body for head, body in sorted(loops.items()) if not any(other < body for other in loops.values())}

    def way_round(
        self, head: int, body: set[int], must: re.Pattern[str], extra: re.Pattern[str], at_least: int
    ) -> list[int] | None:
        """Blocks of the shortest way from a loop's first block to the next round, loops inside it not repeated.

        Args:
            must: as many of these instructions as any way has are on it; of the others as few as possible are.
            extra, at_least: so many of these are on it.

        Returns:
            None if there is no way with so many.
        """
        order = self._in_order(head, body)
        place = {block: number for number, block in enumerate(order)}
        counts: dict[int, tuple[int, int, int]] = {}
        for block in order:
            text = self.text([block])
            needed = count(must, text)
            counts[block] = -needed, len(text) - needed, count(extra, text)
        # By block and how many extra ones there were, no more than needed: the cost and the way.
        best: dict[int, dict[int, tuple[tuple[int, int], list[int]]]] = {block: {} for block in order}
        best[head][min(counts[head][2], at_least)] = counts[head][:2], [head]
        for block in order:
            for seen, (cost, way) in best[block].items():
                for follower in self.after[block]:
                    if place.get(follower, -1) > place[block]:
                        needed, others, more = counts[follower]
                        reached = min(seen + more, at_least)
                        total = (cost[0] + needed, cost[1] + others)
                        if reached not in best[follower] or total < best[follower][reached][0]:
                            best[follower][reached] = total, [*way, follower]
        ends = [best[block][at_least] for block in order if head in self.after[block] and at_least in best[block]]
        return min(ends)[1] if ends else None

    def _in_order(self, head: int, body: set[int]) -> list[int]:
        """A loop's blocks, each one after those that lead to it in the same round."""
        order: list[int] = []
        seen = {head}
        open_blocks = [(head, iter(self.after[head]))]
        while open_blocks:
            _, followers = open_blocks[-1]
            follower = next((each for each in followers if each in body and each not in seen), None)
            if follower is None:
                order.append(open_blocks.pop()[0])
            else:
                seen.add(follower)
                open_blocks.append((follower, iter(self.after[follower])))
        return order[::-1]

    def _dominated(self) -> list[set[int]]:
        """For each block those that cannot be reached without it."""
        roots = [block for block, before in enumerate(self.before) if block == 0 or not before]
        everything = self._reached(roots, None)
        return [everything - self._reached(roots, block) for block in range(len(self.spans))]

    def _reached(self, roots: list[int], avoided: int | None) -> set[int]:
        found: set[int] = set()
        open_blocks = list(roots)
        while open_blocks:
            block = open_blocks.pop()
            if block not in found and block != avoided:
                found.add(block)
                open_blocks += self.after[block]
        return found


def _target(instruction: str) -> str:
    found = _TARGET.search(instruction)
    return "" if found is None else found.group(1) or f"0x{int(found.group(2), 16):x}"


def count(pattern: re.Pattern[str], text: Iterable[str]) -> int:
    """How many of the instructions match."""
    return sum(map(bool, map(pattern.search, text)))

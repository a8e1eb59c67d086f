"""Guesses at the next tokens of a request: what followed the last time it said the same words.

Prompt lookup (Saxena, 2023; the n-gram proposer of vLLM): answers that quote their prompt or repeat themselves are
guessed without another model. Several earlier places give a tree of guesses; a step verifies all of them at once
(Miao et al., "SpecInfer", ASPLOS 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Draft:
    """A tree of guessed tokens; a chain where nothing branches.

    Attributes:
        tokens: the guesses, parents before children.
        parents: index of each guess's predecessor among ``tokens``; -1 is the last known token.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    @property
    def depths(self) -> tuple[int, ...]:
        """Distance of each guess from the last known token, from 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @property
    def branches(self) -> bool:
        """Whether it is more than a chain."""
        return self.parents != tuple(range(-1, len(self.tokens) - 1))

    def accepted(self, best: Sequence[int]) -> list[int]:
        """The guesses that greedy decoding confirms.

        Args:
            best: the most likely token after the last known token, then after each guess.

        Returns:
            Indices of the confirmed guesses, from the first on; ``best`` after the last of them is sure as well.
        """
        path: list[int] = []
        at = -1
        while True:
            wanted = best[at + 1]
            at = next((i for i, p in enumerate(self.parents) if p == at and self.tokens[i] == wanted), len(self.tokens))
            if at == len(self.tokens):
                return path
            path.append(at)


NO_DRAFT = Draft((), ())


class NgramDrafter:
    """Proposes what followed earlier occurrences of the last tokens."""

    def __init__(self, *, longest: int = 3, shortest: int = 1, branches: int = 1) -> None:
        """Sets what counts as the same words.

        Args:
            longest, shortest: tokens that must be equal; longer matches are tried first.
            branches: earlier places to continue from, at least 1.
        """
        if not 1 <= shortest <= longest:
            raise ValueError(f"shortest: expected 1 to longest ({longest}), got {shortest}")
        if branches < 1:
            raise ValueError(f"branches: expected at least 1, got {branches}")
        self._lengths = range(longest, shortest - 1, -1)
        self._branches = branches

    def propose(self, tokens: Sequence[int], limit: int) -> Draft:
        """Guesses after known tokens.

        Args:
            tokens: all known tokens of a request.
            limit: most guesses; shared evenly by the branches.
        """
        if limit < 1:
            return NO_DRAFT
        per_branch = max(limit // self._branches, 1)
        continuations: list[tuple[int, ...]] = []
        for length in self._lengths:
            ending = tuple(tokens[-length:])
            for start in range(len(tokens) - length - 1, -1, -1):
                if tokens[start + length - 1] != ending[-1] or tuple(tokens[start : start + length]) != ending:
                    continue
                guess = tuple(tokens[start + length : start + length + per_branch])
                if all(guess[: len(other)] != other[: len(guess)] for other in continuations):
                    continuations.append(guess)
                if len(continuations) == self._branches:
                    return _tree(continuations, limit)
        return _tree(continuations, limit)


def _tree(continuations: Sequence[Sequence[int]], limit: int) -> Draft:
    """Merges continuations where they begin alike."""
    nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> index
    for continuation in continuations:
        at = -1
        for token in continuation:
            if (at, token) not in nodes and len(nodes) == limit:
                break
            at = nodes.setdefault((at, token), len(nodes))
    return Draft(tuple(token for _, token in nodes), tuple(parent for parent, _ in nodes))

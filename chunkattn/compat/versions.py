"""Which versions of another package an integration was made for and tested with."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class VersionRange:
    """Versions from `first` on and below `end`.

    Attributes:
        package: for messages.
        first, end: release numbers, e.g. (5, 16).
        extra: the extra of this package that installs a fitting version.
    """

    package: str
    first: tuple[int, ...]
    end: tuple[int, ...]
    extra: str

    def problem(self, version: str) -> str | None:
        """One sentence saying what is wrong with a version, None if nothing is."""
        match = re.match(r"\d+(\.\d+)*", version)
        release = tuple(int(part) for part in match.group().split(".")) if match else ()
        if self.first <= release < self.end:
            return None
        return (
            f"{self.package}: expected a version from {_dotted(self.first)} on and below {_dotted(self.end)}, "
            f"got {version}; pip install 'chunkattn[{self.extra}]'"
        )

    def check(self, version: str) -> None:
        """Raises what `problem` says.

        Raises:
            ImportError: the version is outside the range.
        """
        problem = self.problem(version)
        if problem is not None:
            raise ImportError(problem)


def _dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))

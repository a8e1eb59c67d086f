"""The progress bar of a run."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from chunkattn.extras import require


class CaseProgress:
    """A bar over cases and, inside a case, over its rounds; silent where the console is no terminal."""

    def __init__(self, console: Any, keys: list[str]) -> None:
        require("rich", extra="bench", purpose="chunkattn bench")
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._keys = keys
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            refresh_per_second=2,  # drawing takes time from the measured
        )
        self._task = self._bar.add_task("", total=len(keys))

    def update(self, case: int, what: str, share: float) -> None:
        """Shows what is being done."""
        self._bar.update(self._task, completed=case + share, description=f"{self._keys[case]}: {what}")

    def __enter__(self) -> CaseProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

"""The scheduler stays small enough to read in one sitting."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import chunkattn.scheduler
from chunkattn.scheduler import Scheduler


def lines_of_code(path: Path) -> int:
    """Lines that are neither blank, comment nor docstring."""
    text = path.read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for i, line in lines if line.strip() and not line.lstrip().startswith("#") and i not in documented)


def test_package_has_at_most_600_lines_of_code() -> None:
    files = list(Path(chunkattn.scheduler.__file__).parent.glob("*.py"))
    assert len(files) >= 6
    assert sum(map(lines_of_code, files)) <= 600


def test_schedule_fits_one_screen() -> None:
    assert len(inspect.getsource(Scheduler.schedule).splitlines()) <= 60

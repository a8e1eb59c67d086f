"""The interfaces of other libraries stand on top: they call the public operators, and nothing below knows them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import chunkattn

ROOT = Path(chunkattn.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
BELOW = ("ops", "backends", "planning", "build", "args", "scheduler", "serving", "models", "cli", "testing", "bench")


def imports(path):
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in nodes:
        yield from [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


def in_compat(path):
    return (ROOT / "compat") in path.parents


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_compat_stands_on_top(path):
    for name in imports(path):
        parts = name.split(".")
        if in_compat(path):
            assert parts[0] != "chunkattn" or len(parts) == 1 or parts[1] not in BELOW, f"{path} imports {name}"
        else:
            assert parts[:2] != ["chunkattn", "compat"], f"{path} imports {name}"

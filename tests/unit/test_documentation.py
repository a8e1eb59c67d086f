"""What the documentation shows runs: docstring examples, the README's Python, the examples."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import chunkattn

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", chunkattn.__all__)
def test_docstring_examples(name):
    """Every public function shows one, or names the function whose example has it."""
    thing = getattr(chunkattn, name)
    if not callable(thing):
        return
    finder = doctest.DocTestFinder(recurse=True)
    runner = doctest.DocTestRunner()
    for example in finder.find(thing, name, globs={name: thing}):
        runner.run(example)
    assert runner.failures == 0
    if inspect.isfunction(thing):
        assert runner.tries > 0 or "See `attention`." in (thing.__doc__ or "")


def test_readme_python_runs_in_order(monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert blocks
    module = types.ModuleType("readme")
    monkeypatch.setitem(sys.modules, "readme", module)  # torch.compile looks up where a function is from
    exec("\n".join(blocks), vars(module))


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_examples_answer_help(example):
    command = [sys.executable, ROOT / "examples" / example, "--help"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("usage: ")


def test_mixed_step_example():
    output = subprocess.run(
        [sys.executable, ROOT / "examples/mixed_step.py"], capture_output=True, text=True, check=True
    ).stdout
    assert output.count("new tokens over") == 2


def test_ci_runs_the_readme_commands():
    for marker in ("demo", "test"):
        assert re.search(rf"^<!-- {marker} -->\n```bash\n", README, re.MULTILINE)
        assert f"readme_command {marker}" in (ROOT / ".ci/run").read_text()

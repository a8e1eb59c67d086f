"""The layers: api -> ops -> (validate, planning) -> backends/<one> -> native core. Arrows may skip, never turn back."""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import chunkattn

ROOT = Path(chunkattn.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py"))


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Dotted names that a file imports; type-checking blocks do not count."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def backend_of(name: str) -> str | None:
    """The backend that a module belongs to."""
    prefix = "chunkattn.backends."
    if not name.startswith(prefix):
        return None
    backend = name.removeprefix(prefix).split(".")[0]
    return None if backend in ("base", "device", "gpu_settings") else backend


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_backends_know_kernels(path):
    module = module_of(path)
    for name in imports(path):
        kernel = within(name, "triton") or within(name, "chunkattn._native")
        allowed = backend_of(module) is not None or within(module, "chunkattn.build") or within(module, "chunkattn.cli")
        assert not kernel or allowed, f"{module} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_backends_do_not_import_each_other_or_anything_above(path):
    module = module_of(path)
    backend = backend_of(module)
    if backend is None:
        return
    above = ("chunkattn.api", "chunkattn.ops", "chunkattn.planning.choose", "chunkattn.scheduler", "chunkattn.models")
    for name in imports(path):
        other = backend_of(name)
        assert other in (None, backend), f"{module} imports {name}"
        assert not any(within(name, layer) for layer in above), f"{module} imports {name}"


USERS = ("scheduler", "serving", "simulation", "models", "tuning", "bench", "compat", "cli", "testing")
# What a layer must not know: everything above it.
ABOVE = {
    "chunkattn.types": (
        "api",
        "ops",
        "validate",
        "args",
        "planning",
        "backends",
        "scheduler",
        "models",
        "cli",
        "testing",
    ),
    "chunkattn.errors": ("api", "ops", "validate", "planning", "backends"),
    "chunkattn.env": ("api", "ops", "validate", "planning", "backends"),
    "chunkattn.validate": ("api", "ops", "backends", "scheduler", "models", "cli", "testing"),
    "chunkattn.planning": ("api", "ops", *USERS),
    "chunkattn.ops": ("api", "scheduler", "models", "cli", "testing"),
    "chunkattn.api": ("scheduler", "models", "cli", "testing"),
    "chunkattn.scheduler": ("serving", "simulation", "models", "cli", "testing"),
    "chunkattn.serving": ("simulation", "cli", "testing"),
    "chunkattn.simulation": ("tuning", "cli", "testing"),
    "chunkattn.tuning": ("api", "ops", "validate", "models", "compat", "cli", "testing"),
    "chunkattn.models": ("cli", "testing", "backends", "ops"),
    "chunkattn.backends": ("api", "ops", *USERS),
}
# Modules of tuning that measure and compile kernels: like bench they build inputs and check answers.
TESTING_TOO = ("chunkattn.tuning.trials", "chunkattn.tuning.static")


@pytest.mark.parametrize("layer", ABOVE)
def test_no_arrow_turns_back(layer):
    for path in FILES:
        module = module_of(path)
        if not within(module, layer):
            continue
        for name in imports(path):
            for upper in ABOVE[layer]:
                if upper == "testing" and module in TESTING_TOO:
                    continue
                assert not within(name, f"chunkattn.{upper}"), f"{module} imports {name}"


def test_the_oracle_shares_nothing_with_the_product():
    for path in FILES:
        if within(module_of(path), "chunkattn.testing") and path.name != "laws.py":
            product = {n for n in imports(path) if within(n, "chunkattn") and not within(n, "chunkattn.testing")}
            assert not product, f"{path} imports {product}"


# Not the checkout: there `python -c` would import the sources, which have no native core unless built in place.
ELSEWHERE = tempfile.gettempdir()


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ELSEWHERE).stdout


def test_importing_needs_no_optional_part():
    """Neither the native core nor triton nor any extra is imported, and missing ones do no harm."""
    code = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {'triton', 'gguf', 'tokenizers', 'safetensors', 'rich', 'matplotlib'}:
            raise ModuleNotFoundError(name)
        if name == 'chunkattn._native':
            raise ImportError('not built')
sys.meta_path.insert(0, Block())
import chunkattn, torch
kv = chunkattn.PagedKV.allocate(2, 16, 1, 16, dtype=torch.float32)
kv.k_cache.zero_(), kv.v_cache.fill_(3.0)
batch = chunkattn.Batch.from_lists([1], [5], [[1]])
lengths = batch.cu_seqlens_q, batch.seq_lens
out = chunkattn.attention(torch.ones(1, 2, 16), kv.k_cache, kv.v_cache, batch.block_table, *lengths)
print(out.mean().item(), 'chunkattn._native' in sys.modules)
spec = chunkattn.AttentionSpec('cpu', torch.float32, torch.float32, 2, 1, 16, 16, 16)
print(chunkattn.explain(spec))
"""
    lines = run(code).splitlines()
    assert lines[0] == "3.0 False"
    assert any("cpu" in line and "refuses" in line and "not built" in line for line in lines[1:])


def test_importing_is_fast():
    """Under 50 ms of processor time on top of torch; the best of five."""
    code = """
import time, torch
start = time.process_time()
import chunkattn
print(time.process_time() - start)
"""
    assert any(float(run(code)) < 0.050 for _ in range(5))


def test_public_names():
    assert len([name for name in chunkattn.__all__ if not name.startswith("_")]) <= 15
    for name in chunkattn.__all__:
        assert getattr(chunkattn, name).__doc__, f"{name} has no docstring"


def test_no_public_name_is_also_a_module():
    """`import chunkattn.<name> as x` would bind what the package has under that name, not the module."""
    modules = {path.stem for path in ROOT.glob("*.py")} | {path.parent.name for path in ROOT.glob("*/__init__.py")}
    callables = {name for name in chunkattn.__all__ if callable(getattr(chunkattn, name))}
    assert not callables & modules


def test_testing_comes_when_asked_for():
    code = """
import sys, chunkattn
before = 'chunkattn.testing' in sys.modules
batch = chunkattn.Batch.from_lists([1], [1], [[0]])
kv = chunkattn.PagedKV.allocate(1, 16, 1, 16, dtype=__import__('torch').float32)
chunkattn.attention(kv.k_cache[0, :1], kv.k_cache, kv.v_cache, batch.block_table, batch.cu_seqlens_q, batch.seq_lens)
served = 'chunkattn.testing' in sys.modules
print(before, served, chunkattn.testing.row_budget.__module__, hasattr(chunkattn, 'nothing'))
"""
    assert run(code).split() == ["False", "False", "chunkattn.testing.compare", "False"]

"""Triton's own tutorials (matmul, attention, persistent matmul with and without descriptors), unchanged.

They are not part of Triton's wheel: TRITON_TUTORIALS names the folder python/tutorials of a checkout of Triton.
"""

from __future__ import annotations

import ast
import linecache
import math
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from . import native, triton_driver
from .launch import Options
from .session import emulated

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if not triton_driver.available():
    pytest.skip("triton is not installed", allow_module_level=True)
if "TRITON_TUTORIALS" not in os.environ:
    pytest.skip("TRITON_TUTORIALS does not name the tutorials of a Triton checkout", allow_module_level=True)

FOLDER = Path(os.environ.get("TRITON_TUTORIALS", "."))
SEEDS = range(2)


def definitions(tree: ast.Module) -> list[ast.stmt]:
    """The statements before a tutorial starts to run itself, without tests, benchmarks and vendor libraries."""
    kept = []
    for statement in tree.body:
        is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        if is_call or (isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)):
            break
        if isinstance(statement, ast.If) and "blas" in ast.unparse(statement).lower():
            continue
        if isinstance(statement, ast.FunctionDef) and statement.name.startswith(("test_", "bench")):
            continue
        kept.append(statement)
    return kept


def load(name: str, arch: int, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A tutorial as a module; to be called inside emulated(), since tutorials ask for the device at import."""
    path = FOLDER / f"{name}.py"
    if not path.exists():
        pytest.skip(f"{path} does not exist")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (arch // 10, arch % 10))
    properties = SimpleNamespace(multi_processor_count=4, name="PTX emulator")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    text = path.read_text()
    module = ModuleType(f"tutorial_{name.replace('-', '_')}_{arch}")
    module.__file__ = str(path)
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    code = compile(ast.Module(definitions(ast.parse(text)), []), str(path), "exec")
    exec(code, module.__dict__)
    return module


@pytest.mark.parametrize("arch", [80, 90])
def test_matmul(arch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    a, b = torch.rand(200, 192).half() - 0.5, torch.rand(192, 136).half() - 0.5
    for seed in SEEDS:
        with emulated(arch, Options.for_seed(seed)):
            tutorial = load("03-matrix-multiplication", arch, monkeypatch)
            for activation in ("", "leaky_relu"):
                expected = a.float() @ b.float()
                if activation:
                    expected = torch.where(expected >= 0, expected, 0.01 * expected)
                assert (tutorial.matmul(a, b, activation).float() - expected).abs().max() <= 1e-2


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("arch", [80, 90])
def test_attention(arch: int, causal: bool, head_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 256, head_dim).half() * 0.5 for _ in range(3))
    scores = q.float() @ k.float().transpose(-1, -2) * 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(256, 256).triu(1).bool(), -math.inf)
    expected = torch.softmax(scores, -1) @ v.float()
    for seed in SEEDS:
        with emulated(arch, Options.for_seed(seed)):
            tutorial = load("06-fused-attention", arch, monkeypatch)
            out = tutorial.attention(q, k, v, causal, 0.5, False)
        assert (out.float() - expected).abs().max() <= 1e-2


PERSISTENT = {
    "matmul": (80, 90),
    "matmul_persistent": (80, 90),
    "matmul_tma": (90,),
    "matmul_tma_persistent": (90,),
    "matmul_descriptor_persistent": (90,),
}


@pytest.mark.parametrize(("function", "arch"), [(f, arch) for f, archs in PERSISTENT.items() for arch in archs])
def test_persistent_matmul(function: str, arch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(256, 192).half(), torch.randn(192, 384).half()
    expected = a.float() @ b.float()
    transposed = b.T.contiguous()
    for seed in SEEDS:
        with emulated(arch, Options.for_seed(seed)):
            tutorial = load("09-persistent-matmul", arch, monkeypatch)
            uses_descriptors = "tma" in function or "descriptor" in function
            call = getattr(tutorial, function)
            out = call(a, transposed, False) if uses_descriptors else call(a, transposed.T)
        assert (out.float() - expected).abs().max() <= 1e-2 * expected.abs().max()

"""A package installed without the checkout has what the builder needs and builds from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from workshop import Workshop

import chunkattn

ROOT = Path(chunkattn.__file__).parents[1]
CODE = """
from chunkattn.build import builder, sources, store, variants
root = sources.source_root()
listed = [variant for variant in variants.all_variants() if not variant.cutlass]
for name, library in builder.build(listed, report=lambda line: None).items():
    print(name, library.place)
print("root", root)
own = {path.relative_to(root) for v in variants.all_variants()
       for path in sources.reached_files(root / v.source, sources.include_folders(root))}
print("files", len(own))
"""


@pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="the package is installed, there is no checkout")
def test_an_installed_package_builds_from_its_own_sources(shop: Workshop, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path), "build_py"]
    subprocess.run([*command, "--build-lib", str(target)], check=True, cwd=ROOT, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(target), "CHUNKATTN_CACHE": str(shop.cache)}
    result = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = dict(line.split() for line in result.stdout.splitlines())
    assert lines.pop("root") == str(target / "chunkattn" / "csrc")
    assert int(lines.pop("files")) > 10
    assert set(lines.values()) == {"cache"}
    assert {"plan-sm80", "plan-sm90a", "append_kv-sm80"} <= set(lines)

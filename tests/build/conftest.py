"""Builds in a folder of the test's own, by a stand-in compiler."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from pathlib import Path

import pytest
from workshop import Workshop

from chunkattn.build import builder, sources, store, toolchain, variants

if importlib.util.find_spec("ninja") is None and shutil.which("ninja") is None:
    collect_ignore_glob = ["test_build_*.py"]  # nothing can be built without ninja


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop.set_up(tmp_path)
    monkeypatch.setenv("CUDA_HOME", str(made.home))
    monkeypatch.setattr(sources, "source_root", lambda: made.csrc)
    monkeypatch.setattr(store, "PACKAGE_LIBRARIES", tmp_path / "package")
    settings = dataclasses.replace(store.SETTINGS, cache=str(made.cache))
    monkeypatch.setattr(store, "SETTINGS", settings)
    monkeypatch.setattr(builder, "SETTINGS", settings)
    toolchain.forget()
    yield made
    toolchain.forget()


@pytest.fixture
def listed(shop: Workshop) -> dict[str, variants.Variant]:
    """The workshop's variants by name."""
    return {variant.name: variant for variant in variants.read(shop.csrc / "variants.toml")}

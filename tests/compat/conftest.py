"""A real model for the long tier."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def smollm2_fp32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hugging Face directory of SmolLM2-135M in fp32, as `chunkattn models export` writes it."""
    from chunkattn.models import load_model
    from chunkattn.models.export import export_model
    from chunkattn.models.smollm2 import find_smollm2

    try:
        find_smollm2()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("smollm2") / "float32"
    export_model(load_model("smollm2", dtype=torch.float32), directory)
    return directory

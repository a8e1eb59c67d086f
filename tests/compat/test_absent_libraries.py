"""Where another library is absent nothing is missed but what needs it, and that is said in one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chunkattn.compat import transformers
from chunkattn.compat.vllm import plugin

LIBRARIES = ("transformers", "vllm", "flash_attn", "flash_attn_interface", "flashinfer")
IMPORTS = """
import sys
blocked = sys.argv[1:]
sys.modules.update(dict.fromkeys(blocked))  # None: importing one raises ModuleNotFoundError
import chunkattn
from chunkattn.compat import flash_attn, flash_attn_interface, flashinfer, transformers
from chunkattn.compat.vllm import plugin
for name in blocked:
    assert sys.modules[name] is None, name
"""


def test_everything_is_imported_without_them():
    run = subprocess.run([sys.executable, "-c", IMPORTS, *LIBRARIES], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(("library", "register"), [("transformers", transformers.register), ("vllm", plugin.register)])
def test_what_needs_one_says_how_to_install_it(monkeypatch, library, register):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        ImportError, match=rf"'{library}', which is not installed: pip install 'chunkattn\[{library}\]'"
    ):
        register()

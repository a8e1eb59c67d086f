"""``CHUNKATTN_BACKEND``: what `explain` says is taken is what a call takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import chunkattn

CODE = """
import json, torch, chunkattn
from chunkattn.planning import choose
kv = chunkattn.PagedKV.allocate(2, 16, 1, 16, dtype=torch.float32)
kv.k_cache.zero_(), kv.v_cache.zero_()
batch = chunkattn.Batch.from_lists([1], [5], [[1]])
step = batch.block_table, batch.cu_seqlens_q, batch.seq_lens
spec = chunkattn.AttentionSpec('cpu', torch.float32, torch.float32, 2, 1, 16, 16, 16)
said = chunkattn.explain(spec).splitlines()
try:
    chunkattn.attention(torch.ones(1, 2, 16), kv.k_cache, kv.v_cache, *step)
    served = choose.name_of(choose.backend(spec))
except chunkattn.UnsupportedError as error:
    served = None
print(json.dumps([said, served, bool(chunkattn.supports(spec))]))
"""


@pytest.mark.parametrize("asked", ["", "reference", "cuda", "triton"])
def test_what_is_taken_is_what_a_call_takes(asked: str) -> None:
    environment = {**os.environ, "CHUNKATTN_BACKEND": asked, "PYTHONPATH": str(Path(chunkattn.__file__).parents[1])}
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tempfile.gettempdir())
    assert done.returncode == 0, done.stderr
    said, served, supported = json.loads(done.stdout)
    rows = [line.split(None, 2) for line in said if not line.startswith("CHUNKATTN_BACKEND=")]
    assert [name for name, state, _ in rows if state == "taken"] == ([served] if served else [])
    assert supported == bool(served)
    assert served == asked or not asked or served is None
    if asked:
        assert rows[0][0] == asked
        assert said[-1].startswith(f"CHUNKATTN_BACKEND={asked}: calls that name no backend ")
        assert said[-1].endswith("take it" if served else "are refused")

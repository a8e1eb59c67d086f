"""What a model asks of attention, and batches of serving steps to tune it on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from chunkattn.bench import machine, work
from chunkattn.bench.case import DTYPES, BenchCase, Heads
from chunkattn.types import AttentionSpec

_MOST_REQUESTS = 4096  # every setting is planned for all of them
# (count, query tokens, history) groups: decodes, chunks of prompts, both; short and long.
MIXES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "4 decodes at 512": ((4, 1, 511),),
    "8 decodes at 256": ((8, 1, 255),),
    "2 decodes at 2k": ((2, 1, 2047),),
    "16 decodes at 1k": ((16, 1, 1023),),
    "16 decodes at 2k": ((16, 1, 2047),),
    "2 decodes at 8k": ((2, 1, 8191),),
    "chunk 32": ((1, 32, 0),),
    "chunk 64 after 128": ((1, 64, 128),),
    "chunk 256": ((1, 256, 0),),
    "chunk 512 after 2k": ((1, 512, 2048),),
    "2 chunks 256 after 1k": ((2, 256, 1024),),
    "chunk 32 and 4 decodes": ((1, 32, 0), (4, 1, 511)),
    "chunk 64 and 8 decodes": ((1, 64, 0), (8, 1, 255)),
    "chunk 256 and 16 decodes": ((1, 256, 1024), (16, 1, 1023)),
    "chunk 512 and 8 decodes at 4k": ((1, 512, 2048), (8, 1, 4095)),
}


def parse_mix(text: str) -> tuple[tuple[int, int, int], ...]:
    """Groups as ``COUNTxTOKENS+HISTORY,…``, e.g. ``1x512+2048,16x1+1023``.

    Raises:
        ValueError: something else.
    """
    groups = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)x(\d+)(?:\+(\d+))?", part.strip())
        count, tokens, history = (int(number or 0) for number in found.groups()) if found else (0, 0, 0)
        if count * tokens < 1:
            raise ValueError(f"--mix: expected COUNTxTOKENS+HISTORY,…, got {text!r}")
        groups.append((count, tokens, history))
    if sum(count for count, _, _ in groups) > _MOST_REQUESTS:
        raise ValueError(f"--mix: expected at most {_MOST_REQUESTS} requests, got {text!r}")
    return tuple(groups)


def require_memory(cases: Iterable[BenchCase], device: str) -> None:
    """Looks before minutes of work whether every batch can be made.

    Raises:
        ValueError: one takes more than half of the device's memory.
    """
    found = torch.cuda.mem_get_info()[1] if device == "cuda" else machine.describe()["memory_bytes"]
    for case in cases:
        size = work.count(case).bytes
        if size > found // 2:
            raise ValueError(
                f"--mix: expected batches in half of the memory ({found // 2 / 1e9:.3g} GB), got {case.name} "
                f"of {size / 1e9:.3g} GB"
            )


def heads_of(model: str) -> tuple[Heads, ...]:
    """The kinds of attention of a model, each shape once and without what settings do not depend on.

    Args:
        model: a preset of the benchmarks, or a Hugging Face ``config.json`` or its folder.

    Raises:
        ValueError: neither.
    """
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return (_of_config(path),)
    if path.suffix or len(path.parts) > 1:  # no preset's name looks like a file's
        raise ValueError(f"model: expected a preset, or a Hugging Face config.json or its folder, got no file {path}")
    from chunkattn.bench.models import layers

    return tuple(
        dict.fromkeys(replace(kind.heads, window=(-1, -1), sinks=False, softcap=0.0) for kind in layers(model))
    )


def _of_config(path: Path) -> Heads:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        raw = raw.get("text_config", raw)
        q_heads = int(raw["num_attention_heads"])
        head_dim = int(raw.get("head_dim") or raw["hidden_size"] // q_heads)
        return Heads(q_heads, int(raw.get("num_key_value_heads") or q_heads), head_dim, head_dim)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"model: expected a Hugging Face config.json in {path}, got {error!r}") from None


def spec_of(case: BenchCase, device: str) -> AttentionSpec:
    """The facts of a case that decide which backend serves it."""
    heads = case.heads
    dtype, kv_dtype = DTYPES[case.dtype], DTYPES[case.kv_dtype]
    return AttentionSpec(
        device,
        dtype,
        kv_dtype,
        heads.num_q_heads,
        heads.num_kv_heads,
        heads.head_dim,
        heads.head_dim_v,
        case.page_size,
        kv_scale="none" if dtype == kv_dtype else "tensor",
    )

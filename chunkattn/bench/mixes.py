"""Steps of a running engine, drawn from the request lengths of a trace.

A request of p prompt and d answer tokens under a token budget c spends about p / c steps in prefill and d in decode,
so at a random moment it is met with a probability proportional to p / c + d, at a uniformly random point of its way.
A mix is one chunk that fills what the decodes leave of the budget, and the decodes.
"""

from __future__ import annotations

import csv
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

from chunkattn.extras import require

_PROMPT_COLUMNS = ("ContextTokens", "num_prefill_tokens", "input_length", "prompt_size")
_ANSWER_COLUMNS = ("GeneratedTokens", "num_decode_tokens", "output_length", "token_size")


@dataclass(frozen=True)
class Lengths:
    """Prompt and answer tokens of one request."""

    prompt: int
    answer: int


def read_trace(path: Path) -> list[Lengths]:
    """Reads a CSV or JSON-lines trace; the columns of the Azure, Mooncake, Vidur, Etalon and Splitwise files are known.

    Raises:
        ValueError: no such columns, no requests, or lengths that are no numbers.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        jsonl = path.suffix == ".jsonl"
        rows = [json.loads(line) for line in lines if line.strip()] if jsonl else [*csv.DictReader(lines)]
    except ValueError as error:
        raise ValueError(f"trace: expected CSV or JSON lines in UTF-8 in {path}, got {error}") from None
    if not rows:
        raise ValueError(f"trace: expected requests in {path}, got none")
    prompt = next((name for name in _PROMPT_COLUMNS if name in rows[0]), None)
    answer = next((name for name in _ANSWER_COLUMNS if name in rows[0]), None)
    if prompt is None or answer is None:
        raise ValueError(
            f"trace: expected a column of {', '.join(_PROMPT_COLUMNS)} and one of {', '.join(_ANSWER_COLUMNS)}, "
            f"got {', '.join(rows[0])}"
        )
    lengths = []
    for number, row in enumerate(rows, 1):
        try:
            lengths.append(Lengths(int(float(row[prompt])), int(float(row[answer]))))
        except (KeyError, OverflowError, TypeError, ValueError):
            raise ValueError(
                f"trace: expected {prompt} and {answer} in request {number} of {path}, got {row}"
            ) from None
    return [one for one in lengths if one.prompt > 0 and one.answer > 0]


def sample(
    trace: list[Lengths], *, number: int, running: int, budget: int, longest: int | None = None, seed: int = 0
) -> list[list[list[int]]]:
    """Draws mixes.

    Args:
        trace: request lengths.
        number: mixes wanted.
        running: requests in a step.
        budget: query tokens of a step.
        longest: leave out requests with more tokens than this in all.
        seed: of the draw.

    Returns:
        For each mix its groups [count, q_len, history], the chunk first.
    """
    if not 0 < running <= budget:
        raise ValueError(f"running: expected 1 to the budget of {budget} tokens, got {running}")
    fitting = [one for one in trace if longest is None or one.prompt + one.answer <= longest]
    if not fitting:
        raise ValueError(f"longest: expected to leave requests in the trace, got {longest}")
    source = random.Random(seed)
    decode_steps = [one.answer for one in fitting]
    prefill_steps = [math.ceil(one.prompt / budget) for one in fitting]
    mixes = []
    for _ in range(number):
        decodes = source.choices(fitting, decode_steps, k=running - 1)
        (chunked,) = source.choices(fitting, prefill_steps)
        size = min(budget - len(decodes), chunked.prompt)
        history = size * source.randrange(math.ceil(chunked.prompt / size))
        groups = [[1, min(size, chunked.prompt - history), history]]
        groups += [[1, 1, one.prompt + source.randrange(one.answer)] for one in decodes]
        mixes.append(groups)
    return mixes


def to_yaml(title: str, mixes: dict[str, list[list[int]]], *, heads: str = "llama-3-8b") -> str:
    """A file for `chunkattn bench run --cases`."""
    yaml = require("yaml", extra="bench", purpose="writing benchmark cases")
    data = {"about": title, "heads": heads, "dtypes": ["bf16"], "page_sizes": [16], "cases": mixes}
    text: str = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110)
    return text

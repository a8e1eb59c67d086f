"""What a run of the demo came to, as numbers, JSON and a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from rich.table import Table

from chunkattn.cli.scenario import DOCUMENT, ScenarioRun


@dataclass(frozen=True)
class RunResult:
    """One mode's figures.

    Attributes:
        ttft_s: from the document's arrival to its first token.
        tpot_s: time per output token after the first, mean over the chat users.
        longest_stall_s: longest wait between two tokens of any user.
        steps: how many ran.
        peak_activation_bytes: most memory a step's tensors took beside weights and cache.
    """

    ttft_s: float
    tpot_s: float
    longest_stall_s: float
    steps: int
    peak_activation_bytes: int


def result_of(run: ScenarioRun) -> RunResult:
    """Computes a finished run's figures; measures the memory by running its largest steps again."""
    times = run.times()
    tpots = [t.tpot for user, t in times.items() if user != DOCUMENT and t.tpot is not None]
    return RunResult(
        ttft_s=times[DOCUMENT].ttft,
        tpot_s=mean(tpots) if tpots else 0.0,
        longest_stall_s=max(t.longest_stall for t in times.values()),
        steps=len(run.steps),
        peak_activation_bytes=run.peak_activation_bytes(),
    )


def tokens_equal(whole: ScenarioRun, chunked: ScenarioRun) -> bool:
    """Whether everybody got the same tokens in both runs."""
    return all(
        request.output_token_ids == chunked.requests[user].output_token_ids for user, request in whole.requests.items()
    )


def as_json(whole: RunResult, chunked: RunResult, equal: bool) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    return {"whole": asdict(whole), "chunked": asdict(chunked), "tokens_equal": equal}


def results_table(whole: RunResult, chunked: RunResult, chunk: int) -> Table:
    """Both runs side by side."""
    table = Table(title="What the users felt", title_style="bold", title_justify="left", expand=False)
    table.add_column("", overflow="fold")
    table.add_column("whole prompt", justify="right")
    table.add_column(f"chunks of {chunk}", justify="right")
    table.add_column("chunked is", justify="right")
    rows = [
        ("TTFT of the document", whole.ttft_s, chunked.ttft_s, _seconds, "faster", "slower"),
        ("TPOT of the chats", whole.tpot_s, chunked.tpot_s, _seconds, "faster", "slower"),
        ("longest stall", whole.longest_stall_s, chunked.longest_stall_s, _seconds, "shorter", "longer"),
        (
            "peak activations",
            whole.peak_activation_bytes,
            chunked.peak_activation_bytes,
            _bytes,
            "smaller",
            "larger",
        ),
    ]
    for name, before, after, form, less, more in rows:
        style = "bold" if name.startswith("longest") else ""
        table.add_row(name, form(before), form(after), _ratio(before, after, less, more), style=style)
    table.add_row("steps", str(whole.steps), str(chunked.steps), "")
    return table


def _ratio(before: float, after: float, less: str, more: str) -> str:
    if before <= 0 or after <= 0:
        return ""
    ratio, word = (before / after, less) if after <= before else (after / before, more)
    return "the same" if ratio < 1.005 else f"{ratio:.3g}x {word}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"


def _bytes(value: float) -> str:
    return f"{value / 1e6:.1f} MB" if value >= 1e5 else f"{value / 1e3:.1f} kB"

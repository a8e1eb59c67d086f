"""The demo while it runs: everybody's answer as it streams, the document's progress, who is waiting."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from chunkattn.cli.scenario import DOCUMENT, ScenarioRun
from chunkattn.models import StreamingText, Tokenizer
from chunkattn.scheduler import Request
from chunkattn.serving import StepRecord

# A wait that a reader notices.
_NOTICEABLE_S = 0.4
_NAME_WIDTH, _STATE_WIDTH = 9, 15


class LiveView:
    """A display of one run; redrawn by a thread, so that it moves while a long step computes.

    Where the output is not a terminal it prints nothing until the run is over, and then every answer once.
    """

    def __init__(self, console: Console, title: str, run: ScenarioRun, tokenizer: Tokenizer) -> None:
        self._console = console
        self._title = title
        self._run = run
        self._texts = {user: StreamingText(tokenizer) for user in run.requests}
        self._last_token: dict[str, float] = {}
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, vertical_overflow="crop")

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live.start()
        else:
            self._console.print(f"{self._title} ...")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()
        elif error is None:
            self._console.print(self._render())

    def on_step(self, step: StepRecord) -> None:
        """Takes a step's tokens."""
        for request, token in step.tokens:
            self._texts[request.request_id].add(token)
            self._last_token[request.request_id] = step.end

    def _render(self) -> RenderableType:
        steps = self._run.steps
        now = time.perf_counter()
        elapsed = (steps[-1].end if self._done() else now) - steps[0].start if steps else 0.0
        head = Text.assemble((self._title, "bold"), f"   {elapsed:5.1f} s   step {len(steps)}")
        width = max(self._console.width - _NAME_WIDTH - _STATE_WIDTH - 4, 16)
        # The whole display must fit: a live region taller than the terminal cannot be redrawn in place.
        lines = max((self._console.height - 4) // len(self._run.requests), 1) if self._console.is_terminal else 99
        table = Table.grid(padding=(0, 1))
        table.add_column(width=_NAME_WIDTH, no_wrap=True, style="bold")
        table.add_column(width=_STATE_WIDTH, no_wrap=True)
        table.add_column(width=width)
        for user, request in self._run.requests.items():
            table.add_row(user, self._state(request, now), self._answer(user, request, width, lines))
        return Group(head, table, "")

    def _done(self) -> bool:
        return all(request.status.is_finished for request in self._run.requests.values())

    def _state(self, request: Request, now: float) -> Text:
        tokens = len(request.output_token_ids)
        if request.status.is_finished:
            return Text(f"{tokens} tokens", style="dim")
        silence = now - self._last_token.get(request.request_id, now)
        if tokens and silence > _NOTICEABLE_S:
            return Text(f"waits {silence:.1f} s", style="bold red")
        if tokens:
            return Text(f"{tokens} tokens", style="green")
        return Text("reading", style="cyan") if request.arrival_time else Text("not here yet", style="dim")

    def _answer(self, user: str, request: Request, width: int, lines: int) -> RenderableType:
        if user == DOCUMENT and not request.output_token_ids and request.arrival_time:
            total = len(request.prompt_token_ids)
            label = f"{request.num_computed_tokens}/{total}"
            length = max(width - len(label) - 1, 4)
            bar = Table.grid(padding=(0, 1))
            bar.add_row(ProgressBar(total=total, completed=request.num_computed_tokens, width=length), label)
            return bar
        wrapped = Text(" ".join(self._texts[user].text.split())).wrap(self._console, width)
        return Text("\n").join(wrapped[-lines:])

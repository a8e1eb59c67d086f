"""What happened, as little of it as the metrics need: a long replay has millions of chunks."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise

from chunkattn.scheduler import Request, ScheduledBatch, Scheduler
from chunkattn.serving.engine import StepRecord
from chunkattn.serving.step_work import StepWork


@dataclass
class RequestRecord:
    """One request's life, in seconds on the engine's clock; the latencies are of one with at least one token.

    Attributes:
        request: the request itself.
        first_scheduled: start of its first step.
        num_first_cached: prompt tokens the prefix cache gave at its first admission.
        token_times: when each token came.
    """

    request: Request
    first_scheduled: float
    num_first_cached: int
    token_times: array[float] = field(default_factory=lambda: array("d"))

    @property
    def ttft(self) -> float:
        """First token after arrival: queue and all chunks."""
        return self.token_times[0] - self.request.arrival_time

    @property
    def tpot(self) -> float | None:
        """(last token - first token) / (tokens - 1); None for one token."""
        count = len(self.token_times) - 1
        return (self.token_times[-1] - self.token_times[0]) / count if count else None

    @property
    def gaps(self) -> list[float]:
        """Every wait between two tokens."""
        return [after - before for before, after in pairwise(self.token_times)]

    @property
    def e2el(self) -> float:
        """Last token after arrival."""
        return self.token_times[-1] - self.request.arrival_time

    @property
    def queue(self) -> float:
        """First step after arrival."""
        return self.first_scheduled - self.request.arrival_time


@dataclass(frozen=True)
class ChunkSpan:
    """A watched request's chunk in time, for a picture."""

    request_id: str
    start: float
    end: float
    is_decode: bool


class Recorder:
    """Listens to an engine.

    Attributes:
        scheduler: the engine's.
        requests: records by request id, of requests that have run.
        spans: chunks of the watched requests.
        step_starts, step_ends: seconds.
        pages_in_use, num_chunks, host_seconds, metadata_seconds: of each step: its cache and size, and what scheduling
            and building its tensors took.
        work: counts over all steps.
        largest: the steps with the most tokens and with the most rows of logits, and their counts.
        hits, queries: prompt tokens found in the prefix cache and looked up, first admissions only.
        resumed_hits, resumed_queries: the same for admissions after a preemption.
        num_preemptions: victims so far.
    """

    def __init__(self, scheduler: Scheduler, watched: Collection[str] = ()) -> None:
        """Watches an engine's scheduler.

        Args:
            scheduler: the engine's.
            watched: ids of requests whose chunks are kept.
        """
        self.scheduler = scheduler
        self._watched = frozenset(watched)
        self.requests: dict[str, RequestRecord] = {}
        self.spans: list[ChunkSpan] = []
        self.step_starts, self.step_ends = array("d"), array("d")
        self.host_seconds, self.metadata_seconds = array("d"), array("d")
        self.pages_in_use, self.num_chunks = array("q"), array("q")
        self.work = StepWork()
        self.largest: list[tuple[StepWork, ScheduledBatch]] = []
        self.hits = self.queries = self.resumed_hits = self.resumed_queries = self.num_preemptions = 0

    @property
    def num_recomputed_tokens(self) -> int:
        """Tokens computed again after preemptions."""
        return self.scheduler.num_recomputed_tokens

    def __call__(self, step: StepRecord) -> None:
        """Takes a step."""
        batch, end = step.batch, step.end
        for chunk in batch.chunks:
            if not chunk.is_decode or chunk.request.request_id not in self.requests:
                self._admission(chunk.request, chunk.start, chunk.end, step.start)
        for request, _ in step.tokens:
            self.requests[request.request_id].token_times.append(end)
        if self._watched:
            self.spans += [
                ChunkSpan(c.request.request_id, step.start, end, c.is_decode)
                for c in batch.chunks
                if c.request.request_id in self._watched
            ]
        work = StepWork.of(batch.chunks)
        self.work = self.work + work
        self._keep_if_largest(work, batch)
        self.step_starts.append(step.start)
        self.step_ends.append(end)
        self.host_seconds.append(step.host_seconds)
        self.metadata_seconds.append(step.metadata_seconds)
        self.num_chunks.append(len(batch.chunks))
        self.pages_in_use.append(step.pages_in_use)
        self.num_preemptions += len(batch.preempted)

    def _keep_if_largest(self, work: StepWork, batch: ScheduledBatch) -> None:
        if not self.largest:
            self.largest = [(work, batch)] * 2
        elif work.num_tokens > self.largest[0][0].num_tokens:
            self.largest[0] = (work, batch)
        if work.num_logits > self.largest[1][0].num_logits:
            self.largest[1] = (work, batch)

    def _admission(self, request: Request, start: int, end: int, now: float) -> None:
        """Notes the first chunk after an admission."""
        first = request.request_id not in self.requests
        if first:
            cached = 0 if request.num_external_tokens else request.num_cached_tokens
            self.requests[request.request_id] = RequestRecord(request, now, cached)
        if start != request.num_cached_tokens or request.num_external_tokens:
            return
        if first:
            self.queries += len(request.prompt_token_ids)
            self.hits += request.num_cached_tokens
        elif request.num_preemptions and end > start:
            self.resumed_queries += request.prefill_until
            self.resumed_hits += request.num_cached_tokens

"""Runs one trace under several settings and gathers what came of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from chunkattn.models import Decoder
from chunkattn.models.activation_memory import peak_activation_bytes
from chunkattn.scheduler import Request, SchedulerConfig
from chunkattn.serving import (
    Executor,
    Machine,
    ModelExecutor,
    ModelWork,
    NgramDrafter,
    Recorder,
    RequestRecord,
    Slo,
    StepMetadata,
    summarise,
)
from chunkattn.simulation.clock import Clock, SimulatedClock, WorkClock
from chunkattn.simulation.cost_model import CostModel
from chunkattn.simulation.disaggregated import Link, PageHandover, replay_disaggregated
from chunkattn.simulation.executor import SimulatedExecutor
from chunkattn.simulation.prompts import to_requests
from chunkattn.simulation.replay import OnStep, Worker, fitting, replay
from chunkattn.simulation.settings import Setting
from chunkattn.simulation.trace import TraceRequest, scale


@dataclass(frozen=True)
class Capacity:
    """The machine that every setting gets; a disaggregated one gets two.

    Attributes:
        max_num_seqs: most requests running at once.
        page_size, num_pages: of the cache.
        link_bytes_per_second, link_seconds_per_page: between two workers.
    """

    max_num_seqs: int = 64
    page_size: int = 16
    num_pages: int = 2048
    link_bytes_per_second: float = 25e9
    link_seconds_per_page: float = 5e-6


@dataclass(frozen=True)
class Outcome:
    """A trace under one setting.

    Attributes:
        setting: how it was scheduled.
        rate: factor of the trace's arrival rate.
        executor: "model" or "simulated".
        note: the cost model's held-out error where steps were simulated, else what was measured.
        summary: figures, see `chunkattn.serving.summarise`.
        recorders: what happened, one a worker.
        records: every request's life.
        num_refused: requests that no cache of this size can hold.
    """

    setting: Setting
    rate: float
    executor: str
    note: str
    summary: dict[str, Any]
    recorders: Sequence[Recorder] = field(repr=False)
    records: Mapping[str, RequestRecord] = field(repr=False)
    num_refused: int = 0


class Experiment:
    """A trace, a machine, and either a model or the cost model of one.

    Attributes:
        capacity: what every setting gets.
    """

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        capacity: Capacity,
        *,
        work: ModelWork,
        decoder: Decoder | None = None,
        cost: CostModel | None = None,
        slo: Slo | None = None,
        machine: Machine | None = None,
        num_watched: int = 40,
    ) -> None:
        """Chooses between a real model and a simulated one.

        Args:
            trace: arrivals and lengths.
            capacity: what every setting gets.
            work: FLOPs and bytes of the model.
            decoder: runs the steps for real.
            cost: predicts them instead; exactly one of both is given.
            slo: what counts as good.
            machine: what utilisation is a share of.
            num_watched: requests whose chunks are kept for pictures, from the first on.
        """
        if (decoder is None) == (cost is None):
            raise ValueError("decoder: expected exactly one of decoder and cost")
        self.capacity = capacity
        self._trace = trace
        self._work = work
        self._decoder = decoder
        self._cost = cost
        self._slo = slo
        self._machine = machine
        self._watched = [str(i) for i in range(num_watched)]

    def run(self, setting: Setting, rate: float = 1.0, on_step: OnStep | None = None) -> Outcome:
        """Replays the trace under a setting.

        Args:
            setting: how to schedule.
            rate: factor of the trace's arrival rate.
            on_step: called after every step.
        """
        capacity = self.capacity
        config = setting.config(
            max_num_seqs=capacity.max_num_seqs, page_size=capacity.page_size, num_pages=capacity.num_pages
        )
        vocabulary = None if self._decoder is None else self._decoder.config.vocab_size
        everybody = to_requests(scale(self._trace, rate=rate), vocabulary)
        requests = fitting(everybody, config)
        run = self._run_apart if setting.disaggregated else self._run_together
        recorders, records, executors = run(config, requests, on_step)
        summary = summarise(recorders, records, slo=self._slo, model=self._work, machine=self._machine)
        summary["peak_activation_bytes"] = max(
            self._activation_bytes(recorder, executor) for recorder, executor in zip(recorders, executors)
        )
        drafted = sum(e.num_drafted for e in executors if isinstance(e, ModelExecutor))
        accepted = sum(e.num_accepted for e in executors if isinstance(e, ModelExecutor))
        summary["draft_acceptance_rate"] = accepted / drafted if drafted else 0.0
        kind = "simulated" if self._cost is not None else "model"
        note = self._cost.error_text if self._cost is not None else "measured, real steps"
        refused = len(everybody) - len(requests)
        return Outcome(setting, rate, kind, note, summary, recorders, records, refused)

    def warm_up(self) -> None:
        """Runs a little of each kind of step on a real model, so that first-use costs fall into no run."""
        if self._decoder is not None:
            capacity = replace(self.capacity, num_pages=16)
            config = SchedulerConfig(8, 2, capacity.page_size, capacity.num_pages)
            worker = Worker.build(config, self._executor(config, WorkClock()), WorkClock())
            replay(worker, [Request(str(i), [1 + i] * 12, 3) for i in range(2)])

    def _run_together(
        self, config: SchedulerConfig, requests: Sequence[Request], on_step: OnStep | None
    ) -> tuple[list[Recorder], Mapping[str, RequestRecord], list[Executor]]:
        clock = self._clock()
        executor = self._executor(config, clock)
        worker = Worker.build(config, executor, clock, self._watched)
        replay(worker, requests, on_step)
        return [worker.recorder], worker.recorder.requests, [executor]

    def _run_apart(
        self, config: SchedulerConfig, requests: Sequence[Request], on_step: OnStep | None
    ) -> tuple[list[Recorder], Mapping[str, RequestRecord], list[Executor]]:
        clocks = [self._clock(), self._clock()]
        configs = [replace(config, max_num_seqs=1), config]
        executors = [self._executor(config, clock) for clock in clocks]
        source, target = executors
        handover = (
            PageHandover(source, target)
            if isinstance(source, ModelExecutor) and isinstance(target, ModelExecutor)
            else None
        )
        prefill = Worker.build(configs[0], source, clocks[0], self._watched)
        decode = Worker.build(configs[1], handover or target, clocks[1], self._watched)
        link = Link(
            self.capacity.link_bytes_per_second,
            self.capacity.link_seconds_per_page,
            self._work.kv_bytes_per_token * config.page_size,
        )
        records = replay_disaggregated(prefill, decode, requests, link, handover, on_step)
        return [prefill.recorder, decode.recorder], records, executors

    def _clock(self) -> Clock:
        return SimulatedClock() if self._cost is not None else WorkClock()

    def _executor(self, config: SchedulerConfig, clock: Clock) -> Executor:
        if self._cost is not None:
            assert isinstance(clock, SimulatedClock)
            return SimulatedExecutor(self._cost, clock)
        assert self._decoder is not None
        drafter = NgramDrafter() if config.num_draft_tokens else None
        return ModelExecutor(self._decoder, num_pages=config.num_pages, page_size=config.page_size, drafter=drafter)

    def _activation_bytes(self, recorder: Recorder, executor: Executor) -> float:
        """Most memory a step took beside weights and cache: of a model by running its largest steps again."""
        if self._cost is not None:
            return max((self._cost.activation_bytes(work) for work, _ in recorder.largest), default=0.0)
        assert isinstance(executor, ModelExecutor)
        assert self._decoder is not None
        device, page_size = self._decoder.device, self.capacity.page_size
        peak = 0
        for _, batch in {id(batch): (work, batch) for work, batch in recorder.largest}.values():
            if batch.chunks:
                step = StepMetadata.of(batch, page_size, device)
                peak = max(peak, peak_activation_bytes(partial(executor.forward, step), device))
        return float(peak)

"""What users felt and what the machine did, under the keys of vLLM's serving benchmark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chunkattn.serving.recorder import Recorder, RequestRecord
from chunkattn.serving.step_work import ModelWork

_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Slo:
    """What a good answer takes at most, in seconds; None asks nothing.

    Attributes:
        ttft: time to first token.
        tpot: mean time per output token after the first; an answer of one token meets it.
        itl: 99th percentile of the waits between two tokens of a request.
        e2el: whole answer.
    """

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2el: float | None = None

    def met(self, record: RequestRecord) -> bool:
        """Whether a request with at least one token met all of them."""
        gaps = record.gaps if self.itl is not None else []
        pairs = (
            (self.ttft, record.ttft),
            (self.tpot, record.tpot),
            (self.itl, percentile(sorted(gaps), 99) if gaps else None),
            (self.e2el, record.e2el),
        )
        return all(limit is None or value is None or value <= limit for limit, value in pairs)


@dataclass(frozen=True)
class Machine:
    """What utilisation is a share of; None leaves the share out.

    Attributes:
        peak_flops: dense FLOP/s of the dtype that is used, of one worker.
        peak_bandwidth: bytes/s of its memory.
    """

    peak_flops: float | None = None
    peak_bandwidth: float | None = None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Percentile by linear interpolation (numpy's default); NaN of nothing.

    Args:
        ordered: ascending.
        percent: 0…100.
    """
    if not ordered:
        return math.nan
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """mean, median, std, percentiles and max of a latency, in ms, as vLLM names them."""
    ordered = sorted(seconds)
    mean = math.fsum(ordered) / len(ordered) if ordered else math.nan
    variance = math.fsum((x - mean) ** 2 for x in ordered) / len(ordered) if ordered else math.nan
    values = {"mean": mean, "median": percentile(ordered, 50), "std": math.sqrt(variance)}
    values |= {f"p{p}": percentile(ordered, p) for p in _PERCENTILES}
    values["max"] = ordered[-1] if ordered else math.nan
    return {f"{key}_{name}_ms": value * 1e3 for key, value in values.items()}


def summarise(
    recorders: Sequence[Recorder],
    records: Mapping[str, RequestRecord],
    *,
    slo: Slo | None = None,
    model: ModelWork | None = None,
    machine: Machine | None = None,
) -> dict[str, Any]:
    """Figures of a run.

    Args:
        recorders: one a worker.
        records: every request's life over all workers.
        slo: what counts as good; None asks nothing.
        model: for FLOPs and bytes; None leaves them out.
        machine: for utilisation.

    Returns:
        JSON-able figures. Latencies in ms, rates per second of the time from the first arrival to the last token.
        Cached prompt tokens count as input but not as computed.
    """
    done = [r for r in records.values() if r.request.status.is_finished and r.token_times]
    begin = min((r.request.arrival_time for r in records.values()), default=0.0)
    end = max((r.token_times[-1] for r in done), default=begin)
    duration = max(end - begin, 1e-12)
    slo = slo or Slo()
    good = sum(map(slo.met, done))
    inputs = sum(len(r.request.prompt_token_ids) for r in done)
    outputs = sum(len(r.token_times) for r in done)
    computed = sum(recorder.work.num_tokens for recorder in recorders)
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(records) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(done) / duration,
        "request_goodput": good / duration,
        "slo_attainment": good / len(done) if done and slo != Slo() else math.nan,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
        "computed_token_throughput": computed / duration,
        **_spread("ttft", [r.ttft for r in done]),
        **_spread("tpot", [r.tpot for r in done if r.tpot is not None]),
        **_spread("itl", [gap for r in done for gap in r.gaps]),
        **_spread("e2el", [r.e2el for r in done]),
        **_spread("queue", [r.queue for r in done]),
        "mean_e2el_per_token_ms": (
            math.fsum(r.e2el / len(r.token_times) for r in done) / len(done) * 1e3 if done else math.nan
        ),
        "num_workers": len(recorders),
        "num_steps": sum(len(recorder.step_ends) for recorder in recorders),
        "num_preemptions": sum(recorder.num_preemptions for recorder in recorders),
        "num_recomputed_tokens": sum(recorder.num_recomputed_tokens for recorder in recorders),
        **_cache(recorders),
        **_pool(recorders),
        **_host(recorders),
        **_fairness(done, recorders[0].scheduler.config.fair_weights),
        "busy_share": sum(_busy(recorder) for recorder in recorders) / len(recorders) / duration,
    }
    if model is not None:
        result |= _utilisation(recorders, done, model, machine or Machine(), duration)
    return result


def _cache(recorders: Sequence[Recorder]) -> dict[str, Any]:
    hits, queries = sum(r.hits for r in recorders), sum(r.queries for r in recorders)
    resumed, asked = sum(r.resumed_hits for r in recorders), sum(r.resumed_queries for r in recorders)
    return {
        "prefix_cache_hit_rate": hits / queries if queries else 0.0,
        "prefix_cache_hit_tokens": hits,
        "resumed_cache_hit_rate": resumed / asked if asked else 0.0,
    }


def _pool(recorders: Sequence[Recorder]) -> dict[str, Any]:
    """Use of the fullest pool; the mean is over time."""
    peaks, means = [], []
    for recorder in recorders:
        pages = recorder.scheduler.pool.num_pages
        peaks.append(max(recorder.pages_in_use, default=0) / pages)
        busy = _busy(recorder)
        spans = zip(recorder.pages_in_use, recorder.step_starts, recorder.step_ends)
        means.append(sum(used * (end - start) for used, start, end in spans) / pages / busy if busy else 0.0)
    return {"peak_kv_usage": max(peaks), "mean_kv_usage": max(means)}


def _host(recorders: Sequence[Recorder]) -> dict[str, Any]:
    """Cost of schedule() and update(), and of building tensors, in real time also where steps are simulated."""

    def per_chunk(name: str, costs: Sequence[Sequence[float]]) -> dict[str, float]:
        pairs = [(cost, n) for r, own in zip(recorders, costs) for cost, n in zip(own, r.num_chunks)]
        ordered = sorted(cost / n * 1e6 for cost, n in pairs if n)
        return {f"{key}_{name}_us_per_chunk": percentile(ordered, p) for key, p in (("median", 50), ("p99", 99))}

    host, metadata = [r.host_seconds for r in recorders], [r.metadata_seconds for r in recorders]
    spent = sum(map(sum, host)) + sum(map(sum, metadata))
    busy = sum(map(_busy, recorders))
    return {
        **per_chunk("host", host),
        **per_chunk("metadata", metadata),
        "host_share": spent / busy if busy else math.nan,
    }


def _fairness(done: Sequence[RequestRecord], weights: tuple[float, float]) -> dict[str, Any]:
    """Service of each client, and Jain's index of it: 1 where all got the same, 1/n where one got everything."""
    service: dict[str, float] = {}
    first: dict[str, list[float]] = {}
    for record in done:
        client = record.request.client_id
        tokens = weights[0] * len(record.request.prompt_token_ids) + weights[1] * len(record.token_times)
        service[client] = service.get(client, 0.0) + tokens
        first.setdefault(client, []).append(record.token_times[0] - record.request.arrival_time)
    squares = sum(value * value for value in service.values())
    return {
        "num_clients": len(service),
        "jain_index": sum(service.values()) ** 2 / (len(service) * squares) if squares else math.nan,
        "service_spread": max(service.values(), default=0.0) - min(service.values(), default=0.0),
        "worst_client_p99_ttft_ms": max((percentile(sorted(t), 99) for t in first.values()), default=math.nan) * 1e3,
    }


def _busy(recorder: Recorder) -> float:
    return sum(end - start for start, end in zip(recorder.step_starts, recorder.step_ends))


def _utilisation(
    recorders: Sequence[Recorder],
    done: Sequence[RequestRecord],
    model: ModelWork,
    machine: Machine,
    duration: float,
) -> dict[str, Any]:
    """Model FLOPs count each token once, hardware FLOPs also what was computed again."""
    useful = 0.0
    for record in done:
        tokens = len(record.request.prompt_token_ids) + len(record.token_times) - 1
        useful += model.span_flops(record.num_first_cached, tokens, len(record.token_times))
    executed = sum(model.step_flops(recorder.work) for recorder in recorders)
    moved = sum(
        model.step_bytes(r.work) + model.weight_bytes * max(len(r.step_ends) - 1, 0) for r in recorders
    )  # the weights once a step
    result = {
        "model_flops": useful,
        "executed_flops": executed,
        "model_flops_per_second": useful / duration,
        "bytes_moved": moved,
        "bytes_per_second": moved / duration,
        "kv_bytes_peak": max(
            max(r.pages_in_use, default=0) * r.scheduler.pool.page_size * model.kv_bytes_per_token for r in recorders
        ),
    }
    workers = len(recorders)
    if machine.peak_flops:
        result["mfu"] = useful / duration / machine.peak_flops / workers
        result["hfu"] = executed / duration / machine.peak_flops / workers
    if machine.peak_bandwidth:
        result["mbu"] = moved / duration / machine.peak_bandwidth / workers
    return result

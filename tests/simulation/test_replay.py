"""Replays: who runs when, what is counted, and two workers give the tokens of one."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from chunkattn.bench.timing import Window
from chunkattn.models import Decoder, ModelConfig
from chunkattn.models.rope import RopeConfig
from chunkattn.models.weights import DecoderWeights, LayerWeights
from chunkattn.serving import ModelWork, Slo
from chunkattn.simulation import (
    Calibration,
    Capacity,
    CostModel,
    Experiment,
    Outcome,
    TraceRequest,
    find_capacity,
    parse_setting,
)

CONFIG = ModelConfig("tiny", 64, 16, 24, 2, 4, 2, 8, 1e-5, 512, RopeConfig(1e4, 8), (None, None))
# A second a step, a millisecond a token.
FLAT = CostModel((1, 1001), (1.0, 2.0), 0.0, 0.0, 0.0, 0.0, 100.0, 1000.0)
TRACE = [TraceRequest(float(i), 40 + 30 * (i % 3), 4 + i % 5) for i in range(12)]


def run(name: str, trace: list[TraceRequest] = TRACE, **options: Any) -> Outcome:
    capacity = options.pop("capacity", Capacity(8, 4, 200))
    experiment = Experiment(trace, capacity, work=ModelWork(CONFIG), cost=options.pop("cost", FLAT), **options)
    return experiment.run(parse_setting(name))


def decoder() -> Decoder:
    source = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=source) * 0.4

    layers = [
        LayerWeights(
            attention_norm=torch.ones(16),
            qkv=draw(64, 16),
            qkv_bias=None,
            q_norm=None,
            k_norm=None,
            output=draw(16, 32),
            output_bias=None,
            mlp_norm=torch.ones(16),
            gate_up=draw(48, 16),
            gate_up_bias=None,
            down=draw(16, 24),
            down_bias=None,
        )
        for _ in range(2)
    ]
    embedding = draw(64, 16)
    return Decoder(CONFIG, DecoderWeights(embedding, tuple(layers), torch.ones(16), embedding))


def test_one_request_alone() -> None:
    outcome = run("sarathi:16", [TraceRequest(0.0, 40, 3)])
    record = outcome.records["0"]
    # Chunks of 16, 16, 8, then two decodes.
    ends = [1.015, 2.030, 3.037]
    assert record.token_times.tolist() == pytest.approx([ends[2], ends[2] + 1, ends[2] + 2])
    summary = outcome.summary
    assert summary["mean_ttft_ms"] == pytest.approx(3037)
    assert summary["mean_tpot_ms"] == summary["max_itl_ms"] == pytest.approx(1000)
    assert summary["mean_e2el_ms"] == pytest.approx(5037)
    assert summary["duration"] == pytest.approx(5.037)
    assert (summary["total_input_tokens"], summary["total_output_tokens"], summary["num_steps"]) == (40, 3, 5)
    assert summary["output_throughput"] == pytest.approx(3 / 5.037)
    assert summary["busy_share"] == pytest.approx(1)
    assert summary["peak_kv_usage"] == 11 / 200  # 42 tokens with keys and values in pages of 4
    assert summary["peak_activation_bytes"] == 16 * 100  # of a chunk; a row of logits takes 1000
    assert outcome.executor == "simulated"


def test_idle_time_is_skipped_and_counts() -> None:
    outcome = run("whole", [TraceRequest(0.0, 10, 1), TraceRequest(100.0, 10, 1)])
    assert outcome.records["1"].token_times[0] == pytest.approx(101.009)
    assert outcome.summary["busy_share"] == pytest.approx(2.018 / 101.009)


def test_slo_counts_the_good_ones() -> None:
    trace = [TraceRequest(0.0, 10, 3), TraceRequest(0.0, 400, 1)]
    for slo, good in (
        (Slo(ttft=99.0), 2),
        (Slo(ttft=1.5), 2),
        (Slo(ttft=1.1), 0),
        (Slo(tpot=0.9), 1),  # an answer of one token has no time per token
        (Slo(itl=1.0), 2),
        (Slo(e2el=2.0), 1),
    ):
        summary = run("whole", trace, slo=slo).summary
        assert summary["slo_attainment"] == good / 2
        assert summary["request_goodput"] == pytest.approx(good / summary["duration"])
    assert math.isnan(run("whole", trace).summary["slo_attainment"])  # nothing was asked


def test_budget_bounds_the_longest_wait() -> None:
    trace = [TraceRequest(0.0, 8, 30), TraceRequest(2.5, 700, 1)]
    whole, chunked = run("whole", trace), run("sarathi:32", trace)
    assert whole.summary["max_itl_ms"] == pytest.approx(1000 + 700)
    assert chunked.summary["max_itl_ms"] == pytest.approx(1000 + 31)
    assert whole.summary["executed_flops"] == chunked.summary["executed_flops"] == chunked.summary["model_flops"]
    assert whole.summary["peak_activation_bytes"] > 10 * chunked.summary["peak_activation_bytes"]


@pytest.mark.parametrize("name", ["whole", "sarathi:32", "vllm", "sglang", "trtllm:64", "splitfuse", "disaggregated"])
def test_every_preset_finishes_everybody(name: str) -> None:
    outcome = run(name)
    assert outcome.summary["completed"] == len(TRACE)
    for request, record in zip(TRACE, outcome.records.values()):
        assert len(record.token_times) == request.num_output_tokens
        assert list(record.token_times) == sorted(record.token_times)
        assert record.first_scheduled >= record.request.arrival_time
    assert outcome.summary["num_workers"] == (2 if name == "disaggregated" else 1)
    assert outcome.summary["num_recomputed_tokens"] == 0
    assert all(value == value or key.startswith(("p", "m", "s")) for key, value in outcome.summary.items())


def test_prefill_first_stalls_and_decode_first_does_not() -> None:
    trace = [TraceRequest(0.0, 8, 20), *(TraceRequest(3.0 + i, 60, 1) for i in range(5))]
    assert run("sglang", trace).summary["max_itl_ms"] > 5000
    assert run("vllm", trace).summary["max_itl_ms"] < 1700


def test_small_pools_preempt_and_count_what_is_computed_again() -> None:
    trace = [TraceRequest(0.0, 20, 30), TraceRequest(0.0, 20, 30)]
    outcome = run("sarathi:64", trace, capacity=Capacity(8, 4, 20))
    assert outcome.summary["num_preemptions"] >= 1
    assert outcome.summary["num_recomputed_tokens"] > 20
    assert outcome.summary["executed_flops"] > outcome.summary["model_flops"]
    assert run("trtllm:64", trace, capacity=Capacity(8, 4, 20)).summary["num_preemptions"] == 0


def test_prefix_hits_are_counted_and_not_computed() -> None:
    trace = [TraceRequest(10.0 * i, 64, 2, (0, 1), block=32) for i in range(4)]
    outcome = run("vllm", trace)
    assert outcome.summary["prefix_cache_hit_tokens"] == 3 * 60  # the last page is computed again
    assert outcome.summary["prefix_cache_hit_rate"] == pytest.approx(180 / 256)
    assert outcome.summary["computed_token_throughput"] < run("sarathi", trace).summary["computed_token_throughput"]


def test_requests_that_never_fit_are_counted() -> None:
    outcome = run("whole", [TraceRequest(0.0, 500, 2), TraceRequest(0.0, 10, 2)], capacity=Capacity(8, 4, 50))
    assert (outcome.num_refused, outcome.summary["completed"]) == (1, 1)
    with pytest.raises(ValueError, match="pages: expected room for at least one request in 2 pages of 4"):
        run("whole", capacity=Capacity(8, 4, 2))


def test_handing_over_costs_what_the_link_takes() -> None:
    trace = [TraceRequest(0.0, 40, 3)]
    kv = ModelWork(CONFIG).kv_bytes_per_token
    assert kv == 2 * 2 * 2 * 8 * 4
    slow = Capacity(8, 4, 200, link_bytes_per_second=4.0 * kv, link_seconds_per_page=0.5)
    outcome = run("disaggregated", trace, capacity=slow)
    first, second, third = outcome.records["0"].token_times
    assert first == pytest.approx(1.039)
    assert second == pytest.approx(1.039 + 10 * (1 + 0.5) + 1)  # ten pages: 1 s to move, 0.5 s each besides
    assert third == pytest.approx(second + 1)
    assert outcome.summary["mean_ttft_ms"] == pytest.approx(1039)


def test_prefill_worker_keeps_pages_until_they_are_over() -> None:
    # Room for one prompt: the second waits for the link, not for the processor.
    trace = [TraceRequest(0.0, 40, 2), TraceRequest(0.0, 40, 2)]
    kv = ModelWork(CONFIG).kv_bytes_per_token
    narrow = Capacity(8, 4, 11, link_bytes_per_second=4.0 * kv, link_seconds_per_page=0.0)
    times = run("disaggregated", trace, capacity=narrow).records["1"].token_times
    assert times[0] == pytest.approx(1.039 + 10 + 1.039)


def test_clients_are_counted_apart() -> None:
    trace = [TraceRequest(0.0, 30, 5, client="a"), TraceRequest(0.0, 10, 5, client="b")]
    summary = run("sarathi:32", trace).summary
    service = (30 + 2 * 5, 10 + 2 * 5)
    assert summary["num_clients"] == 2
    assert summary["service_spread"] == service[0] - service[1]
    assert summary["jain_index"] == pytest.approx(sum(service) ** 2 / 2 / (service[0] ** 2 + service[1] ** 2))
    assert summary["worst_client_p99_ttft_ms"] == summary["max_ttft_ms"]


def test_capacity_is_met_and_a_little_more_is_not() -> None:
    trace = [TraceRequest(float(i), 40, 5) for i in range(60)]
    for slo, bearable in ((Slo(ttft=3.0), True), (Slo(ttft=0.5), False)):
        experiment = Experiment(trace, Capacity(4, 4, 200), work=ModelWork(CONFIG), cost=FLAT, slo=slo)
        setting = parse_setting("sarathi:64")
        for start in (0.1, 100.0):
            rate = find_capacity(experiment, setting, start=start)
            if not bearable:
                assert rate == 0.0
                continue
            assert experiment.run(setting, rate).summary["slo_attainment"] >= 0.9
            assert experiment.run(setting, 1.06 * rate).summary["slo_attainment"] < 0.9


def test_who_comes_faster_waits_longer() -> None:
    experiment = Experiment(TRACE, Capacity(8, 4, 200), work=ModelWork(CONFIG), cost=FLAT)
    slow, fast = (experiment.run(parse_setting("whole"), rate) for rate in (0.1, 10.0))
    assert (slow.rate, fast.rate) == (0.1, 10.0)
    assert slow.summary["mean_queue_ms"] < fast.summary["mean_queue_ms"]
    assert not math.isnan(slow.summary["p99_itl_ms"])


@pytest.mark.parametrize("name", ["whole", "sarathi:16", "vllm:32:num_draft_tokens=3", "sglang:32", "disaggregated"])
def test_a_real_model_gives_the_same_tokens_under_every_setting(name: str) -> None:
    model = decoder()
    tokens = []
    for setting in ("whole", name):
        experiment = Experiment(TRACE[:6], Capacity(4, 4, 200), work=ModelWork(CONFIG), decoder=model)
        experiment.warm_up()
        outcome = experiment.run(parse_setting(setting), rate=1000.0)
        assert outcome.summary["completed"] == 6
        assert outcome.summary["peak_activation_bytes"] > 0
        assert outcome.executor == "model"
        tokens.append({key: record.request.output_token_ids for key, record in outcome.records.items()})
        for record in outcome.records.values():
            assert all(after >= before for before, after in pairwise(record.token_times))
    assert tokens[0] == tokens[1]


def test_calibration_measures_a_model() -> None:
    calibration = Calibration(decoder(), page_size=4, longest_chunk=64, longest_context=128, most_decodes=4)
    seen = []
    cost = calibration.run(lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(calibration.shapes) + 12,) * 2
    assert len(cost.held_out_errors) == 12
    assert cost.facts["model"] == "tiny"
    assert cost.activation_bytes_per_token >= 16 * 4 * 2
    assert cost.activation_bytes_per_logit >= 64 * 4
    outcome = run("sarathi:32", cost=cost)
    assert outcome.note == cost.error_text
    assert "held-out error" in outcome.note


@pytest.mark.parametrize(("seconds_a_step", "rounds"), [(0.1, 6), (4.0, 1)])
def test_calibration_takes_more_rounds_on_a_busy_machine_only_while_there_is_time(
    seconds_a_step: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def measure(_call: object, **_options: object) -> Window:
        nonlocal now
        now += seconds_a_step
        calls.append(now)
        return Window(seconds_a_step, seconds_a_step, 1, other_cores=2.0, awake=0.5)

    calls: list[float] = []
    calibration = Calibration(decoder(), page_size=4, longest_chunk=16, longest_context=32, most_decodes=2)
    monkeypatch.setattr("chunkattn.simulation.calibration.window_of", measure)
    monkeypatch.setattr("chunkattn.simulation.calibration.time.perf_counter", lambda: now)
    calibration.run()
    assert len(calls) == rounds * (len(calibration.shapes) + len(calibration.held_out))


def test_exactly_one_of_model_and_cost_is_given() -> None:
    with pytest.raises(ValueError, match="exactly one of decoder and cost"):
        Experiment(TRACE, Capacity(), work=ModelWork(CONFIG))

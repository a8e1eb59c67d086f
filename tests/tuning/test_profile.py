"""Recorded profiles: what is read, how wrong the fit is, and the budgets that follow.

The public profiles are looked for in the folder CHUNKATTN_TEST_TRACES: Vidur's ``data/profiling/compute`` tables as
``profiles/vidur/<device>_<model>_mlp.csv``, its ``vidur/splitwise_conv.csv``, and Splitwise's
``splitwise-sim/perf_model.csv``. Tests of them skip without.
"""

from __future__ import annotations

import csv
import os
import random
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from chunkattn.serving import StepWork, visible_pairs
from chunkattn.simulation import CostModel, MeasuredStep, SyntheticProcess, TraceRequest, read_trace, scale
from chunkattn.tuning.profile import STEP_COLUMNS, Device, cross_validated, read_profile
from chunkattn.tuning.token_budget import Load, Objective, plan_token_budget
from chunkattn.tuning.traffic import confirm, load_of, replay_budget

TRACES = Path(os.environ.get("CHUNKATTN_TEST_TRACES", "no-such-folder"))
H100 = Device(32, 989e12, 3.35e12)
A100 = Device(32, 312e12, 2.0e12)
public = pytest.mark.skipif(not (TRACES / "profiles").is_dir(), reason="the public profiles are not here")


def write_steps(path: Path, rows: list[tuple[float, ...]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(STEP_COLUMNS)
        writer.writerows(rows)


def synthetic_rows(number: int, noise: float) -> list[tuple[float, ...]]:
    source = random.Random(3)
    rows = []
    for _ in range(number):
        chunk, decodes = source.choice([0, 64, 128, 256, 512]), source.randint(1, 32)
        history, context = source.randint(0, 2000), source.randint(1, 2000)
        seconds = 5e-3 + 1e-4 * (chunk + decodes) + 2e-8 * chunk * history + 3e-7 * decodes * context
        rows.append((chunk, history, decodes, context, seconds * (1 + source.uniform(-noise, noise))))
    return rows


def test_step_csv_is_fitted_and_every_step_is_held_out_once(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    write_steps(path, synthetic_rows(60, 0.02))
    cost = read_profile(path)
    assert len(cost.held_out_errors) == 60
    assert median(cost.held_out_errors) < 0.05
    work = Load(16, 1000, 500, 500, 1).step(256, 500)
    expected = 5e-3 + 1e-4 * 272 + 2e-8 * 256 * 500 + 3e-7 * 16 * 1000
    assert cost.seconds(work) == pytest.approx(expected, rel=0.1)


def test_errors_grow_with_what_cannot_be_known(tmp_path: Path) -> None:
    errors = []
    for noise in (0.0, 0.5):
        write_steps(tmp_path / "steps.csv", synthetic_rows(60, noise))
        errors.append(median(read_profile(tmp_path / "steps.csv").held_out_errors))
    assert errors[1] > 0.1 > errors[0]


def test_a_repetition_is_no_held_out_step(tmp_path: Path) -> None:
    rows = synthetic_rows(30, 0.5)
    write_steps(tmp_path / "once.csv", rows)
    write_steps(tmp_path / "often.csv", rows * 10)
    once, often = (read_profile(tmp_path / name) for name in ("once.csv", "often.csv"))
    assert often.held_out_errors == once.held_out_errors
    write_steps(tmp_path / "few.csv", rows[:9] * 10)
    with pytest.raises(ValueError, match="at least 10 different measured steps, got 9"):
        read_profile(tmp_path / "few.csv")


def layer_rows(tokens: range) -> str:
    head = "time_stats.emb.median,time_stats.mlp.median,n_head,n_kv_head,n_embd,vocab_size,num_tokens,"
    rows = [f"99,{0.1 * -(-n // 64):.6f},32,8,4096,32000,{n},{tp}" for n in tokens for tp in (1, 2)]
    return "\n".join([head + "num_tensor_parallel_workers", *rows]) + "\n"


def test_layer_profile(tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    path.write_text(layer_rows(range(1, 1025, 3)))
    with pytest.raises(ValueError, match="expected the number of layers, peak FLOP/s and peak bandwidth"):
        read_profile(path)
    cost = read_profile(path, Device(10, 1e14, 1e12, overhead=0.0))
    logits = 2 * 4096 * 32000 / 0.75e12
    assert cost.seconds(StepWork(num_tokens=64)) == pytest.approx(10 * 0.1e-3 + logits)  # without the embedding
    assert cost.seconds_per_key == pytest.approx(10 * 2 * 2 * 8 * 128 / 0.75e12)
    assert cost.seconds_per_pair == pytest.approx(10 * 4 * 32 * 128 / 0.55e14)
    assert "not in this profile" in cost.facts["attention"]
    with pytest.raises(ValueError, match="at least 10 numbers of tokens for 4"):
        read_profile(path, Device(10, 1e14, 1e12, 4))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "profile: expected columns"),
        ("a,b\n1,2\n", "profile: expected columns"),
        (",".join(STEP_COLUMNS) + "\n", "at least 10 different measured steps, got 0"),
        (",".join(STEP_COLUMNS) + "\n1,2,3,4,0\n", "as seconds at .*:2, got '0'"),
        (",".join(STEP_COLUMNS) + "\n1,2,3,4,nan\n", "as seconds at .*:2, got 'nan'"),
        (",".join(STEP_COLUMNS) + "\n1,2,3,4,.1\n-1,2,3,4,.1\n", "as prefill_tokens at .*:3, got '-1'"),
        (",".join(STEP_COLUMNS) + "\n0,2,0,4,.1\n", "a step with tokens at .*:2"),
        (",".join(STEP_COLUMNS) + "\n1,2\n", "as decodes at .*:2, got None"),
    ],
)
def test_refusals(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=match):
        read_profile(path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_bytes(b"\x9a\x00\xff")
    with pytest.raises(ValueError, match=r"profile: expected a table of comma-separated values in .*profile\.csv"):
        read_profile(path)


def test_cost_model_file_is_a_profile(tmp_path: Path) -> None:
    cost = CostModel((1, 64), (1e-3, 2e-3), 0.0, 1e-7, 0.0, 0.0, held_out_errors=(0.1,))
    (tmp_path / "cost.json").write_text(cost.to_json())
    assert read_profile(tmp_path / "cost.json") == cost


def test_load_of_a_trace_weights_by_output() -> None:
    trace = [TraceRequest(0.0, 100, 10)] * 99 + [TraceRequest(0.0, 10000, 990)]
    load = load_of(trace, 10**9)
    assert load.decode_context == pytest.approx((99 * 10 * 105 + 990 * 10495) / (99 * 10 + 990), abs=1)
    assert load_of(trace, 1).decode_context > 2 * load.decode_context  # one decode may be the long one
    assert load.history == 50


def public_steps() -> dict[str, list[MeasuredStep]]:
    """Whole measured steps of the public profiles, by machine and model."""
    found: dict[str, list[MeasuredStep]] = defaultdict(list)
    with (TRACES / "splitwise-sim" / "perf_model.csv").open() as file:
        for row in csv.DictReader(file):
            name = f"{row['model']} on {row['tensor_parallel']} {row['hardware']}"
            prompt, batch, output = int(row["prompt_size"]), int(row["batch_size"]), int(row["token_size"])
            tokens = prompt * batch
            pairs = batch * visible_pairs(0, prompt)
            found[name].append(
                MeasuredStep(StepWork(tokens, tokens, batch, batch, pairs, 0, tokens), float(row["prompt_time"]) / 1e3)
            )
            keys = batch * (prompt + output // 2)
            found[name].append(
                MeasuredStep(StepWork(batch, 0, batch, batch, 0, keys, keys), float(row["token_time"]) / 1e3)
            )
    return found


@public
@pytest.mark.parametrize("tensor_parallel", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("name", "device"), [("h100_Llama-2-7b-hf_mlp", H100), ("a100_Meta-Llama-3-8B_mlp", A100)], ids=["h100", "a100"]
)
def test_median_error_of_public_layer_profiles(name: str, device: Device, tensor_parallel: int) -> None:
    split = Device(device.layers, device.peak_flops, device.peak_bandwidth, tensor_parallel)
    cost = read_profile(TRACES / "profiles" / "vidur" / f"{name}.csv", split)
    assert len(cost.held_out_errors) > 200
    print(f"{name}, {tensor_parallel} devices: median held-out error {median(cost.held_out_errors):.1%}")
    assert median(cost.held_out_errors) <= 0.10


@public
def test_median_error_of_public_steps() -> None:
    for name, steps in public_steps().items():
        errors = cross_validated(steps).held_out_errors
        error = median(errors)
        print(f"{name}: median held-out error {error:.1%} of {len(errors)} different steps")
        assert error <= 0.10, name


@public
@pytest.mark.parametrize(
    ("itl", "history", "budget"), [(0.02, 4096, None), (0.05, 4096, 1024), (0.1, 4096, 2048), (0.1, 0, 2496)]
)
def test_recommendation_on_a_public_profile(itl: float, history: int, budget: int | None) -> None:
    """Budgets that an independent prototype found on these measurements."""
    cost = read_profile(TRACES / "profiles" / "vidur" / "h100_Llama-2-7b-hf_mlp.csv", H100)
    plan = plan_token_budget(cost, Load(64, 1300, history, history, 4096), Objective(itl), largest=4096)
    assert (plan.recommended.budget if plan.recommended else None) == budget


@public
@pytest.mark.parametrize("itl", [0.04, 0.05, 0.1])
def test_recommended_budget_meets_its_objective_in_the_replay(itl: float) -> None:
    cost = read_profile(TRACES / "profiles" / "vidur" / "h100_Llama-2-7b-hf_mlp.csv", H100)
    whole = read_trace(TRACES / "vidur" / "splitwise_conv.csv")[2000:2400]
    trace = scale(whole, rate=(whole[-1].arrival - whole[0].arrival) / 399)
    trace = [TraceRequest(r.arrival - trace[0].arrival, r.num_prompt_tokens, r.num_output_tokens) for r in trace]
    plan = plan_token_budget(cost, load_of(trace, 64), Objective(itl, ttft=3.0), largest=4096)
    confirmation = confirm(plan, cost, trace, max_num_seqs=64)
    assert confirmation.chosen is not None
    assert plan.recommended is not None
    assert confirmation.chosen.budget == plan.recommended.budget
    assert confirmation.chosen.itl_p99 <= itl
    assert confirmation.chosen.ttft_p99 <= 3.0


def synthetic_trace(number: int) -> list[TraceRequest]:
    lengths = (16.0, 32.0, 64.0, 100.0, 200.0, 300.0, 400.0, 600.0, 700.0, 900.0, 1000.0)
    return SyntheticProcess(lengths, tuple(sorted(x / 10 + 1 for x in lengths)), rate=1.0).sample(number)


def test_replay_finds_what_the_prediction_could_not_know() -> None:
    """Twice the machine's arrivals: no budget keeps the first token, and that is said."""
    cost = CostModel((1, 2048), (5e-3, 0.2048), 0.0, 1e-8, 0.0, 0.0)
    trace = synthetic_trace(80)
    plan = plan_token_budget(cost, load_of(trace, 8), Objective(0.05, ttft=1.0), tile=32, largest=2048)
    calm = confirm(plan, cost, trace, max_num_seqs=8)
    flooded = confirm(plan, cost, trace, max_num_seqs=8, rate=20 * calm.rate)
    assert calm.chosen is not None
    assert calm.chosen.met
    assert flooded.chosen is None
    assert all(not replayed.met for replayed in flooded.replays if replayed.budget in {c.budget for c in plan.feasible})


@pytest.mark.parametrize("itl", [0.03, 0.04, 0.05])
def test_what_is_replayed_beside_the_choice_is_a_candidate_too(itl: float) -> None:
    cost = CostModel((1, 2048), (5e-3, 0.2048), 0.0, 1e-8, 0.0, 0.0)
    trace = synthetic_trace(20)
    plan = plan_token_budget(cost, load_of(trace, 8), Objective(itl), tile=32, largest=2048)
    replayed = [replay.budget for replay in confirm(plan, cost, trace, max_num_seqs=8).replays]
    assert len(replayed) == 3
    assert set(replayed) <= {candidate.budget for candidate in plan.candidates}


def test_larger_budgets_make_longer_gaps_in_the_replay() -> None:
    cost = CostModel((1, 2048), (5e-3, 0.2048), 0.0, 1e-8, 0.0, 0.0)
    trace = synthetic_trace(60)
    gaps = [
        replay_budget(cost, trace, budget, Objective(1.0), max_num_seqs=8, rate=10.0).itl_max
        for budget in (64, 256, 1024)
    ]
    assert gaps == sorted(gaps)
    assert gaps[0] < gaps[-1]


def test_answers_of_one_token_wait_for_nothing() -> None:
    cost = CostModel((1, 2048), (5e-3, 0.2048), 0.0, 1e-8, 0.0, 0.0)
    trace = [TraceRequest(float(i), 100, 1) for i in range(5)]
    replayed = replay_budget(cost, trace, 64, Objective(1e-6), max_num_seqs=4, rate=1.0)
    assert (replayed.itl_p99, replayed.itl_max, replayed.met) == (0.0, 0.0, True)
    assert replayed.ttft_p99 > 0

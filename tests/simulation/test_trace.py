"""Traces: every format, every way to be malformed, and processes fitted to them."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest

from chunkattn.simulation import PROCESSES, SyntheticProcess, TraceRequest, read_trace, scale, to_requests

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,10,2\n0.5,20,3\n"
SPLITWISE = """request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size
0,2,0,1,1,4096,32
1,2,0,3,1,2048,8
"""
LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n1047,1368,2415,0.76\n74,918,992,0.08\n"
MOONCAKE = [
    {"timestamp": 1000, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 3500, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 2]},
]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_azure(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "a.csv", AZURE.replace("\n", "\r\n")))
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in trace] == [(374, 44), (396, 109), (879, 55)]
    assert [r.arrival for r in trace] == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-6)


def test_vidur_is_sorted_by_arrival(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "a.csv", VIDUR))
    assert [(r.arrival, r.num_prompt_tokens) for r in trace] == [(0.0, 20), (1.0, 10)]


def test_splitwise(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "a.csv", SPLITWISE))
    assert [(r.arrival, r.num_prompt_tokens, r.num_output_tokens) for r in trace] == [(0.0, 4096, 32), (2.0, 2048, 8)]


def test_lengths_alone_get_arrivals(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "a.csv", LENGTHS))
    assert all(math.isnan(r.arrival) for r in trace)
    timed = SyntheticProcess.fit(trace, rate=4.0).with_arrivals(trace * 500, seed=1)
    gaps = [after.arrival - before.arrival for before, after in pairwise(timed)]
    assert mean(gaps) == pytest.approx(0.25, rel=0.1)
    assert [r.num_prompt_tokens for r in timed[:2]] == [1047, 74]


def test_mooncake_prompts_share_what_their_hashes_share(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, MOONCAKE)) + "\n\n"))
    assert [r.arrival for r in trace] == [0.0, 2.5]
    for vocabulary in (None, 100):
        first, second = to_requests(trace, vocabulary)
        one, two = list(first.prompt_token_ids), list(second.prompt_token_ids)
        assert (len(one), len(two)) == (1000, 1100)
        assert one == two[:1000]
        assert one[:512] != one[512:] + one[:24]
        assert first.prompt_token_ids[700:705] == one[700:705]
        assert first.prompt_token_ids[-1] == one[-1]
        assert vocabulary is None or max(two) < vocabulary


def test_requests_without_hashes_share_nothing() -> None:
    requests = to_requests([TraceRequest(0.0, 50, 1), TraceRequest(1.0, 50, 2, client="x")])
    assert not set(requests[0].prompt_token_ids) & set(requests[1].prompt_token_ids)
    assert [(r.max_tokens, r.arrival_time, r.client_id) for r in requests] == [(1, 0.0, ""), (2, 1.0, "x")]
    real = to_requests([TraceRequest(0.0, 50, 1), TraceRequest(1.0, 50, 2)], 1000)
    assert list(real[0].prompt_token_ids) != list(real[1].prompt_token_ids)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", AZURE.replace("396", "many"), r"a\.csv:3, got 'many'"),
        ("a.csv", AZURE.replace("396", "0"), r"at least 1 as ContextTokens at .*a\.csv:3, got '0'"),
        ("a.csv", AZURE.replace("396", "inf"), r"a whole number .*a\.csv:3, got 'inf'"),
        ("a.csv", AZURE.replace("396", "3.5"), r"a whole number .*a\.csv:3, got '3.5'"),
        ("a.csv", AZURE.replace("2023-11-16 18:15:50", "yesterday"), r"a time as TIMESTAMP at .*a\.csv:3, got 'yester"),
        ("a.csv", AZURE + "2023-11-16 18:15:52,7\n", r"3 columns at .*a\.csv:5, got 2"),
        ("a.csv", "a,b\n1,2\n", r"a header with one of .*a\.csv:1, got 'a, b'"),
        ("a.csv", VIDUR.replace("1.5", "nan"), r"a time as arrived_at at .*a\.csv:2, got 'nan'"),
        ("a.csv", AZURE.splitlines()[0], "expected requests in"),
        ("a.csv", "", r"a\.csv:1, got ''"),
        ("a.jsonl", "", "expected requests in"),
        ("a.jsonl", '{"timestamp": 0\n', r"one JSON object a line at .*a\.jsonl:1"),
        ("a.jsonl", json.dumps(MOONCAKE[0]) + "\n[1]\n", r"one JSON object a line at .*a\.jsonl:2, got list"),
        ("a.jsonl", json.dumps({**MOONCAKE[0], "hash_ids": [1.5, 2]}), r"integers as hash_ids at .*a\.jsonl:1"),
        (
            "a.jsonl",
            json.dumps({**MOONCAKE[0], "hash_ids": [1]}),
            r"one hash id for each 512 of 1000 .*a\.jsonl:1, got 1",
        ),
        ("a.jsonl", json.dumps({"timestamp": 0, "input_length": 4}), r"as output_length at .*a\.jsonl:1, got None"),
        ("a.jsonl", json.dumps({"input_length": 4, "output_length": 4}), r"a time as timestamp at .*a\.jsonl:1"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_trace(write(tmp_path / name, text))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"UTF-8 text in .*a\.csv"):
        read_trace(path)


def test_scaling() -> None:
    trace = [TraceRequest(0.0, 1000, 10, (0, 1)), TraceRequest(4.0, 100, 100)]
    scaled = scale(trace, rate=2.0, length=0.5, longest=300)
    assert [(r.arrival, r.num_prompt_tokens, r.num_output_tokens) for r in scaled] == [(2.0, 50, 50)]
    (halved, _) = scale(trace, length=0.5)
    assert (halved.num_prompt_tokens, halved.block) == (500, 256)
    for wrong in ({"rate": 0.0}, {"length": -1.0}, {"rate": math.nan}, {"rate": math.inf}, {"length": math.inf}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected a positive factor"):
            scale(trace, **wrong)


@pytest.mark.parametrize("name", PROCESSES)
def test_process_gives_back_what_it_was_fitted_to(name: str) -> None:
    process = PROCESSES[name]
    trace = process.sample(4000, seed=3)
    again = SyntheticProcess.fit(trace)
    for column in ("prompt", "output"):
        wanted, got = getattr(process, column)[2:9], getattr(again, column)[2:9]
        assert got == pytest.approx(wanted, rel=0.25, abs=2)
    assert again.correlation == pytest.approx(process.correlation, abs=0.06)
    if process.burstiness > 0.05:  # of heavier tails no 4000 waits tell the mean
        assert again.rate == pytest.approx(process.rate, rel=0.15)
        assert again.burstiness == pytest.approx(process.burstiness, rel=0.4)
    assert (again.continuing is None) == (process.continuing is None)
    if process.continuing is not None:
        assert again.continuing == pytest.approx(process.continuing, abs=0.1)
    assert process.sample(50, seed=3) == trace[:50]
    assert process.sample(50, seed=4) != trace[:50]


def test_process_refuses_what_is_none() -> None:
    good = PROCESSES["azure-conv"]
    with pytest.raises(ValueError, match="prompt: expected 11 ascending lengths"):
        SyntheticProcess(good.prompt[::-1], good.output, 1.0)
    with pytest.raises(ValueError, match="rate: expected positive rate"):
        SyntheticProcess(good.prompt, good.output, 0.0)
    with pytest.raises(ValueError, match="rate: expected positive rate"):
        SyntheticProcess(good.prompt, good.output, math.inf)
    with pytest.raises(ValueError, match="trace: expected at least two requests"):
        SyntheticProcess.fit([TraceRequest(0.0, 1, 1)])

"""benchmarks/gpu_check.py: its whole flow on the CPU, and what it does about crashes, hangs and failures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="no checkout")

WORKER = """
import json, os, sys, time
out, names = sys.argv[2], sys.argv[3:]
for name in names:
    if name == "crash": os._exit(13)
    if name == "hang": time.sleep(60)
    status, reason = ("failed", "RuntimeError: no") if name == "raise" else ("done", "")
    with open(out, "a") as stream:
        stream.write(json.dumps({"task": name, "status": status, "seconds": 0.1, "data": {}, "reason": reason}) + "\\n")
    if name == "poison": os._exit(3)
"""


@pytest.fixture
def check(monkeypatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu_check
    import gpu_gates

    return SimpleNamespace(check=gpu_check, gates=gpu_gates)


def outcomes(check, tmp_path, names, limit=60.0, hang=1.0, saved=None):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    tasks = [(name, hang if name == "hang" else 20.0) for name in names]
    found = check.check.supervise([sys.executable, str(worker)], tasks, limit, saved)
    return [(outcome.task, outcome.status) for outcome in found], found


def test_a_crash_and_a_hang_cost_one_task_each(check, tmp_path):
    saved = []
    names = ["one", "crash", "two", "hang", "raise", "poison", "three"]
    got, found = outcomes(check, tmp_path, names, saved=lambda so_far: saved.append(len(so_far)))
    assert got == [
        ("one", "done"),
        ("crash", "failed"),
        ("two", "done"),
        ("hang", "timeout"),
        ("raise", "failed"),
        ("poison", "done"),
        ("three", "done"),
    ]
    assert "status 13" in found[1].reason
    assert saved == sorted(saved)
    assert saved[-1] == len(names)
    assert 1 in saved  # written before the crash


def test_what_no_time_is_left_for_is_said(check, tmp_path):
    got, _ = outcomes(check, tmp_path, ["one", "hang", "two"], limit=6.0, hang=60.0)
    assert got == [("one", "done"), ("hang", "timeout"), ("two", "skipped")]


def cell(times: dict[str, float], **facts: float) -> dict:
    providers = [{"provider": name, "summary": {"median_ms": 1e3 * seconds}} for name, seconds in times.items()]
    rates = {"matmul": 790e12, "copy": 4.3e12}
    return {"cell": {"providers": providers, "rates": rates, **facts}, "dry_run": False}


def verdicts(check, data, failed=None) -> dict[str, str]:
    return {gate.name: gate.verdict for gate in check.gates.judge(data, failed or {})}


def test_gates(check):
    w4 = {"flops": 75e9, "bytes": 1.1e9, "floor_s": 260e-6}
    good = {
        "W4 p16": cell({"ours-cuda+graph": 300e-6, "two-calls-cuda+graph": 420e-6}, **w4),
        "W3 p16": cell({"ours-triton+graph": 270e-6}, flops=1e9, bytes=1.075e9, floor_s=250e-6),
        "W2 p16": cell({"ours-cuda": 3e-3, "ours-triton+graph": 2.5e-3}, flops=1.134e12, bytes=1e8, floor_s=1.4e-3),
    }
    got = verdicts(check, good)
    assert got["W4 against two calls"] == "pass"
    assert got["W3 decode"] == "pass"
    assert got["W2 prefill"] == "pass"
    assert got["W9 against two calls"] == "not measured"
    slow = {
        "W4 p16": cell({"ours-cuda+graph": 400e-6, "two-calls-cuda+graph": 420e-6}, **w4),
        "W3 p16": cell({"ours-triton+graph": 400e-6}, flops=1e9, bytes=1.075e9, floor_s=250e-6),
    }
    got = verdicts(check, slow)
    assert got["W4 against two calls"] == "fail"
    assert got["W3 decode"] == "fail"


def test_wrong_answers_fail_and_refusals_do_not(check):
    def right(**change):
        one = {"backend": "cuda", "what": "mixed", "served": True, "right": True, "error": ""}
        return {"right cuda": {"checks": [one, {**one, **change}], "dry_run": False}}

    assert verdicts(check, right())["right answers"] == "pass"
    assert verdicts(check, right(served=False))["right answers"] == "pass"
    assert verdicts(check, right(right=False))["right answers"] == "fail"
    assert verdicts(check, {}, {"right cuda": "crashed"})["right answers"] == "fail"
    synced = {"sync cuda": {"backend": "cuda", "ran": True, "right": False, "count": 0, "error": "called a sync"}}
    assert verdicts(check, synced)["no host sync"] == "fail"


def test_kernels_are_built_before_the_clock_of_a_task_runs(check, monkeypatch):
    import gpu_tasks

    from chunkattn.backends.device import Gpu
    from chunkattn.build import builder

    monkeypatch.setattr(gpu_tasks, "gpu", lambda device: None)
    assert (check.check._prepared().status, check.check._prepared().reason) == ("skipped", "no GPU is there")
    built = []
    monkeypatch.setattr(gpu_tasks, "gpu", lambda device: Gpu.of_arch(90, 132))
    monkeypatch.setattr(builder, "build", lambda variants, report: built.extend(variants))
    assert check.check._prepared().status == "done"
    names = {variant.name for variant in built}
    assert {"attention_sm90-d128-bf16-sm90a", "attention_sm80-d256-bf16-kv_e4m3-sm80", "plan-sm90a"} <= names
    assert len(names) == len(built) < 15

    def refuse(variants, report):
        raise builder.BuildError("plan-sm90a cannot be built: nvcc was not found")

    monkeypatch.setattr(builder, "build", refuse)
    assert check.check._prepared().reason == "plan-sm90a cannot be built: nvcc was not found"


def test_a_dry_run_goes_through_everything(check, tmp_path, capsys):
    path = tmp_path / "result.json"
    status = check.check.main(["--dry-run", "--limit", "600", "--output", str(path)])
    shown = capsys.readouterr().out
    result = json.loads(path.read_text())
    states = {task["task"]: task["status"] for task in result["tasks"]}
    assert set(states.values()) == {"done"}, shown
    assert status == 0, shown
    assert "says nothing about a GPU" in result["about"]
    found = {gate["name"]: gate["verdict"] for gate in result["gates"]}
    assert found["right answers"] == "pass", shown
    assert found["graph replay equals eager"] == "pass"
    assert found["W3 decode"] == "not measured"  # a CPU's times are no GPU's
    workloads = {entry["name"] for entry in result["cells"]}
    assert workloads == {"W1", "W2", "W3", "W4", "W5", "W6", "W7", "W9", "W10"}
    for entry in result["cells"]:
        ours = next(one for one in entry["providers"] if one["provider"] == "ours-cpu")
        assert ours["status"] == "measured", ours
    from chunkattn.bench.record import Record

    assert len(Record.load(path).cells) == len(result["cells"])

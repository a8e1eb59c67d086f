"""The gates of the GPU check: what must hold on a data-centre GPU, and whether it did.

Rates are compared with what the same machine does in the same rounds: F is its bf16 matmul rate, B its copy rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

BACKENDS = ("cuda", "triton", "cpu")  # best first; the last one only in a dry run


@dataclass(frozen=True)
class Gate:
    """One line of the verdict.

    Attributes:
        name: what is judged.
        verdict: "pass", "fail" or "not measured".
        measured: the number, in words.
        must, target: the bounds, in words.
        reaches_target: whether the target is reached too; None where it has none or nothing was measured.
        note: who was measured, or why nobody.
    """

    name: str
    verdict: str
    measured: str
    must: str
    target: str = ""
    reaches_target: bool | None = None
    note: str = ""


def judge(data: Mapping[str, Any], failed: Mapping[str, str]) -> list[Gate]:
    """Every gate from the data of the tasks that are done."""
    gates = [_correct(data, failed)]
    gates += [_flag(name, data, failed) for name in ("sync", "graph")]
    gates.append(_speed("W2 prefill", data, "W2", "W2 p16", _share_of_flops, at_least=0.40, target=0.62, unit=" F"))
    gates.append(_speed("W3 decode", data, "W3", "W3 p16", _share_of_bytes, at_least=0.85, target=0.90, unit=" B"))
    gates.append(
        _speed("W10 skewed decode", data, "W10", "W10 p16", _share_of_bytes, at_least=0.80, target=0.90, unit=" B")
    )
    for name, most, floor in (("W4", 0.85, 0.85), ("W9", 0.85, 0.85), ("W5", 0.90, 0.60)):
        task = f"{name} p16"
        gates.append(_speed(f"{name} against two calls", data, name, task, _of_two_calls, at_most=most, unit="x"))
        gates.append(_speed(f"{name} of the floor", data, name, task, _of_floor, target=floor))
    gates.append(
        _speed("W4 against two FA2 calls", data, "W4", "W4 p256", _against_fa2, at_least=1.15, target=1.28, unit="x")
    )
    gates.append(_micro("one decode of 1k", data, failed, "decode_1k_us", 15.0, 10.0))
    gates.append(_micro("plan", data, failed, "plan_us", 5.0, None))
    return gates


def _correct(data: Mapping[str, Any], failed: Mapping[str, str]) -> Gate:
    entries = {name: entry for name, entry in data.items() if name.startswith("right ")}
    lost = {name: reason for name, reason in failed.items() if name.startswith("right ")}
    if not entries and not lost:
        return Gate("right answers", "not measured", "-", "1 budget", note="no backend")
    checks = [check for entry in entries.values() for check in entry["checks"]]
    wrong = [f"{check['backend']} {check['what']}: {check['error']}" for check in checks if not check["right"]]
    wrong += [f"{name}: {reason}" for name, reason in lost.items()]
    served = [check for check in checks if check["right"] and check["served"]]
    verdict = "fail" if wrong else ("pass" if served else "not measured")
    return Gate("right answers", verdict, f"{len(served)} of {len(checks)}", "every one", note="; ".join(wrong)[:2000])


def _flag(name: str, data: Mapping[str, Any], failed: Mapping[str, str]) -> Gate:
    title = {"sync": "no host sync", "graph": "graph replay equals eager"}[name]
    lost = [reason for task, reason in failed.items() if task.startswith(name)]
    entries = [entry for task, entry in data.items() if task.startswith(f"{name} ")]
    ran = [entry for entry in entries if entry["ran"]]
    wrong = [entry["error"] for entry in ran if not entry["right"]]
    if lost or wrong:
        return Gate(title, "fail", f"{len(wrong)} wrong", "none", note="; ".join([*wrong, *lost])[:2000])
    if not ran:
        return Gate(title, "not measured", "-", "none", note="; ".join(entry["error"] for entry in entries)[:500])
    return Gate(title, "pass", "; ".join(f"{entry['backend']} {entry['count']}" for entry in ran), "none")


_Value = Callable[[Mapping[str, Any], str], "float | None"]


def _speed(
    title: str,
    data: Mapping[str, Any],
    workload: str,
    task: str,
    value: _Value,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    target: float | None = None,
    unit: str = "",
) -> Gate:
    """Judges the best of our backends on a workload."""
    must = f">= {at_least}{unit}" if at_least is not None else (f"<= {at_most}{unit}" if at_most is not None else "-")
    wanted = "" if target is None else f">= {target}{unit}"
    entry = data.get(task)
    if entry is None or entry.get("dry_run"):
        return Gate(title, "not measured", "-", must, wanted, note="no time of this machine's GPU")
    found = {name: value(entry["cell"], name) for name in BACKENDS}
    known = {name: number for name, number in found.items() if number is not None}
    if not known:
        return Gate(title, "not measured", "-", must, wanted, note=f"{workload} has no such times")
    best = min if at_most is not None else max
    name = best(known, key=lambda backend: known[backend])
    number = known[name]
    passes = (at_least is None or number >= at_least) and (at_most is None or number <= at_most)
    reaches = None if target is None else number >= target
    others = ", ".join(f"{backend} {known[backend]:.3g}" for backend in known)
    return Gate(title, "pass" if passes else "fail", f"{number:.3g}{unit}", must, wanted, reaches, others)


def _seconds(cell: Mapping[str, Any], provider: str) -> float | None:
    """Median seconds of a provider, of its graph replay where there is one."""
    for key in (f"{provider}+graph", provider):
        for entry in cell["providers"]:
            if entry["provider"] == key and "summary" in entry:
                return float(entry["summary"]["median_ms"]) / 1e3
    return None


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return None if top is None or not bottom else top / bottom


def _share_of_flops(cell: Mapping[str, Any], backend: str) -> float | None:
    seconds = _seconds(cell, f"ours-{backend}")
    return None if seconds is None else cell["flops"] / seconds / cell["rates"]["matmul"]


def _share_of_bytes(cell: Mapping[str, Any], backend: str) -> float | None:
    seconds = _seconds(cell, f"ours-{backend}")
    return None if seconds is None else cell["bytes"] / seconds / cell["rates"]["copy"]


def _of_floor(cell: Mapping[str, Any], backend: str) -> float | None:
    return _ratio(cell["floor_s"], _seconds(cell, f"ours-{backend}"))


def _of_two_calls(cell: Mapping[str, Any], backend: str) -> float | None:
    return _ratio(_seconds(cell, f"ours-{backend}"), _seconds(cell, f"two-calls-{backend}"))


def _against_fa2(cell: Mapping[str, Any], backend: str) -> float | None:
    return _ratio(_seconds(cell, "two-calls-flash-attn-2"), _seconds(cell, f"ours-{backend}"))


def _micro(
    title: str, data: Mapping[str, Any], failed: Mapping[str, str], key: str, most: float, target: float | None
) -> Gate:
    must, wanted = f"<= {most:g} us", "" if target is None else f"<= {target:g} us"
    entry = data.get("small")
    values = {} if entry is None else {name: row[key] for name, row in entry["backends"].items() if key in row}
    if not values or entry is None or entry["dry_run"]:
        return Gate(title, "not measured", "-", must, wanted, note=failed.get("small", "no time of this machine's GPU"))
    number = min(values.values())
    note = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    reaches = None if target is None else number <= target
    return Gate(title, "pass" if number <= most else "fail", f"{number:.3g} us", must, wanted, reaches, note)

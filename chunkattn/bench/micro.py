"""Micro-benchmarks: what a call costs beside its arithmetic, and the cache write beside a peer's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import chunkattn
from chunkattn.bench.case import BenchCase, Heads
from chunkattn.bench.providers import vllm_cpu
from chunkattn.bench.record import Micro
from chunkattn.bench.rounds import Contender, Effort, interleave
from chunkattn.testing import AttentionCase, AttentionInputs, assert_bitwise_equal, build

_REPEAT = 50
"""Calls in a timed unit, so that the clock's own 0.1 µs does not show."""


@dataclass(frozen=True)
class Task:
    """A call to time.

    Attributes:
        key, label: identity and name.
        call: the work.
        repeat: calls in a unit.
        note: what to read beside it.
    """

    key: str
    label: str
    call: Callable[[], object]
    repeat: int = 1
    note: str = ""


def run(effort: Effort, tasks: list[Task]) -> list[Micro]:
    """Times tasks in interleaved rounds."""
    contenders = [Contender(task.key, [_repeated(task.call, task.repeat)]) for task in tasks]
    interleave(contenders, effort, device=torch.device("cpu"))
    results = []
    for task, contender in zip(tasks, contenders, strict=True):
        samples = contender.samples()
        for sample in samples:
            sample.median_s /= task.repeat
            sample.best_s /= task.repeat
            sample.cpu_s = None  # holds the clock's own cost as well
        results.append(Micro(task.key, task.label, samples, task.note))
    return results


def _repeated(call: Callable[[], object], times: int) -> Callable[[], object]:
    if times == 1:
        return call

    def run_all() -> None:
        for _ in range(times):
            call()

    return run_all


def all_tasks() -> Iterator[Task]:
    """Everything below."""
    yield from call_tasks()
    yield from plan_tasks()
    yield from append_tasks()


def call_tasks() -> Iterator[Task]:
    """`attention` on a problem so small that the call itself is all there is."""
    plain = build(AttentionCase("one token", (1,), (1,), num_q_heads=1, num_kv_heads=1, head_dim=16), poison="zero")
    out = plain.empty_state()[0]
    yield Task(
        "call/attention/plain",
        "attention, one token, no options",
        lambda: chunkattn.attention(*plain.batch(), out=out),
        _REPEAT,
    )
    full, options = _every_argument()
    state = full.empty_state()
    yield Task(
        "call/attention/all-arguments",
        "attention, one token, every argument given",
        lambda: chunkattn.attention(*full.batch(), **options, return_lse=True, out=state[0], lse=state[1]),
        _REPEAT,
        "≤ 15 µs wanted",
    )


def _every_argument() -> tuple[AttentionInputs, dict[str, Any]]:
    case = AttentionCase(
        "every argument",
        (1,),
        (1,),
        num_q_heads=1,
        num_kv_heads=1,
        head_dim=16,
        kv_dtype=torch.int8,
        scale_mode="head",
        window=(7, 0),
        softcap=30.0,
        softmax_scale=0.25,
        alibi="head",
        sinks=True,
        tree=True,
    )
    inputs = build(case, poison="zero")
    plan = chunkattn.plan(
        inputs.cu_seqlens_q,
        inputs.seq_lens,
        num_q_heads=1,
        num_kv_heads=1,
        head_dim=16,
        page_size=case.page_size,
        dtype=case.dtype,
        window=case.window,
        num_splits=1,
        backend="cpu",
    )
    workspace = torch.empty(max(1, plan.workspace_bytes) + 64, dtype=torch.uint8)
    return inputs, {
        **inputs.semantics(),
        "invariant": False,
        "num_splits": 1,
        "plan": plan,
        "workspace": workspace,
        "backend": "cpu",
    }


def plan_tasks() -> Iterator[Task]:
    """`plan` beside vLLM's scheduler metadata, 256 requests of which 8 bring a chunk."""
    q_lens = [256] * 8 + [1] * 248
    kv_lens = [1024 + 37 * (i % 64) for i in range(256)]
    starts = torch.tensor([0, *q_lens]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(kv_lens, dtype=torch.int32)
    yield Task(
        "plan/256",
        "plan, 256 requests",
        lambda: chunkattn.plan(
            starts,
            lengths,
            num_q_heads=32,
            num_kv_heads=8,
            head_dim=128,
            page_size=16,
            dtype=torch.bfloat16,
        ),
        _REPEAT,
        "≤ 50 µs wanted",
    )
    if vllm_cpu.missing() is None:
        kernel = vllm_cpu.ops()
        yield Task(
            "plan/256/vllm-cpu",
            "vLLM get_scheduler_metadata, the same",
            lambda: kernel.get_scheduler_metadata(
                256, 32, 8, 128, lengths, torch.bfloat16, starts, True, -1, "vec16", True, None, "auto"
            ),
            _REPEAT,
        )


def append_tasks() -> Iterator[Task]:
    """`append_kv` beside vLLM's reshape_and_cache: a chunk of 512 tokens, and 16 decodes."""
    for page_size in (16, 128):
        for name, requests in (("512 tokens", ((1, 512, 2048),)), ("16 decodes", ((16, 1, 1023),))):
            case = BenchCase("append", name, requests, Heads(), page_size=page_size)
            yield from _append_pair(build(case.attention_case(), poison="zero"), name, page_size)


def _append_pair(inputs: AttentionInputs, name: str, page_size: int) -> Iterator[Task]:
    tokens = inputs.q.shape[0]
    source = torch.Generator().manual_seed(1)
    k, v = (torch.randn(tokens, *inputs.k_cache.shape[2:], generator=source).to(inputs.q.dtype) for _ in range(2))
    place = (inputs.block_table, inputs.cu_seqlens_q, inputs.seq_lens)
    slots = _new_slots(inputs)
    label = f"{name}, pages of {page_size}"
    chunkattn.append_kv(k, v, inputs.k_cache, inputs.v_cache, *place)
    for rows, pool in ((k, inputs.k_cache), (v, inputs.v_cache)):
        assert_bitwise_equal(pool.flatten(0, 1)[slots], rows, context=f"append_kv, {label}: ")
    key = f"append/{name.replace(' ', '-')}/{page_size}"
    yield Task(
        key, f"append_kv, {label}", lambda: chunkattn.append_kv(k, v, inputs.k_cache, inputs.v_cache, *place), 10
    )
    yield Task(
        f"{key}/slots",
        f"append_kv with slot_mapping, {label}",
        lambda: chunkattn.append_kv(k, v, inputs.k_cache, inputs.v_cache, *place, slot_mapping=slots),
        10,
    )
    if vllm_cpu.missing() is None:
        kernel, variant = vllm_cpu.ops(), vllm_cpu.isa(page_size)
        k_cache, v_cache = vllm_cpu.empty_cache(inputs)
        yield Task(
            f"{key}/vllm-cpu",
            f"vLLM reshape_and_cache, {label}",
            lambda: kernel.cpu_attn_reshape_and_cache(k, v, k_cache, v_cache, slots, variant, 1.0, 1.0, "auto"),
            10,
        )


def _new_slots(inputs: AttentionInputs) -> torch.Tensor:
    """int64 [T], where this step's tokens go."""
    page_size = inputs.k_cache.shape[1]
    rows = []
    for request, (q_len, kv_len) in enumerate(zip(inputs.case.q_lens, inputs.case.kv_lens, strict=True)):
        position = torch.arange(kv_len - q_len, kv_len)
        rows.append(inputs.block_table[request, position // page_size].long() * page_size + position % page_size)
    return torch.cat(rows)

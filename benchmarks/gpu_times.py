"""Times of the GPU check: workloads beside the peers, the shortest calls, and how far one multiprocessor reaches.

Inputs rotate so that the second-level cache is cold; calls are CUDA-graph replays where they can be captured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

import chunkattn
from chunkattn.bench import gate, limits, machine, providers, timing, work
from chunkattn.bench.case import DTYPES, BenchCase
from chunkattn.bench.graphs import captured
from chunkattn.bench.providers.base import Call, Provider
from chunkattn.bench.record import Cell, Measured, Record
from chunkattn.bench.rounds import Contender, Effort, interleave
from chunkattn.bench.watch import Step, Watch
from chunkattn.testing import AttentionInputs

_EFFORT = Effort(rounds=5, max_rounds=6, seconds=0.1)
_QUICK = Effort(rounds=2, max_rounds=2, seconds=0.002)
_DRY_MATMUL, _DRY_COPY = 128, 1 << 16  # sizes in a dry run, whose rates mean nothing
_COLD_BYTES = 128 << 20  # of all input sets together: over twice the second-level cache of an H200
_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}


class DeviceInputs(AttentionInputs):
    """Inputs in gigabytes: the oracle gets the pages in use alone."""

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        columns = [self.case.pages_of(request) for request in range(len(self.case.kv_lens))]
        used = [row[:count] for row, count in zip(self.block_table, columns, strict=True)]
        pages, where = torch.unique(torch.cat(used).long(), return_inverse=True)
        table = torch.zeros(len(used), max(columns, default=0), dtype=torch.int32)
        for row, part in zip(table, where.cpu().split(columns), strict=True):
            row[: len(part)] = part

        def taken(pool: torch.Tensor) -> torch.Tensor:
            raw = pool.view(torch.uint8) if pool.element_size() == 1 else pool
            return raw[pages].view(pool.dtype).cpu()

        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields |= {"k_cache": taken(self.k_cache), "v_cache": taken(self.v_cache), "block_table": table}
        return AttentionInputs(**fields).expected()


def device_inputs(case: BenchCase, index: int, device: torch.device) -> DeviceInputs:
    """A case's tensors, drawn on the device; each index is another set."""
    facts = case.attention_case(set_index=index)
    generator = torch.Generator(device).manual_seed(facts.seed)
    counts = [facts.pages_of(request) for request in range(len(facts.kv_lens))]
    num_pages = sum(counts) + facts.spare_pages

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=facts.dtype)

    def pool(dim: int) -> torch.Tensor:
        shape = [num_pages, facts.page_size, facts.num_kv_heads, dim]
        if case.layout != "nhd":
            shape[1], shape[2] = shape[2], shape[1]
        values = normal(*shape)
        largest = _LARGEST.get(facts.cache_dtype)
        if largest is not None:  # 4 standard deviations fill the range
            values = (values.float() * largest / 4).clamp(-largest, largest).to(facts.cache_dtype)
        return values if case.layout == "nhd" else values.transpose(1, 2)

    order = torch.randperm(num_pages, generator=generator, device=device).int()
    table = torch.zeros(len(counts), max(counts, default=0), dtype=torch.int32, device=device)
    for request, count in enumerate(counts):
        begin = sum(counts[:request])
        table[request, :count] = order[begin : begin + count]
    scale = None if facts.cache_dtype == facts.dtype else torch.tensor(4 / _LARGEST[facts.cache_dtype], device=device)
    starts = torch.tensor([0, *facts.q_lens]).cumsum(0).int().to(device)
    return DeviceInputs(
        facts,
        normal(facts.num_tokens, facts.num_q_heads, facts.head_dim),
        pool(facts.head_dim),
        pool(facts.value_dim),
        table,
        starts,
        torch.tensor(facts.kv_lens, dtype=torch.int32, device=device),
        sinks=torch.randn(facts.num_q_heads, generator=generator, device=device) if facts.sinks else None,
        k_scale=scale,
        v_scale=scale,
    )


def planned(inputs: AttentionInputs, backend: str, out: torch.Tensor) -> Call:
    """Our call on one backend, planned ahead as an engine does once a step for all layers."""
    case, options = inputs.case, inputs.options()
    plan = chunkattn.plan(
        inputs.cu_seqlens_q,
        inputs.seq_lens,
        num_q_heads=case.num_q_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        head_dim_v=case.value_dim,
        page_size=case.page_size,
        dtype=case.dtype,
        causal=case.causal,
        window=case.window,
        invariant=case.invariant,
        num_splits=case.num_splits,
        max_tokens=inputs.q.shape[0],
        max_seq_len=max(case.kv_lens),
        backend=backend,
    )
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=inputs.q.device)

    def run() -> torch.Tensor:
        chunkattn.attention(*inputs.batch(), **options, plan=plan, workspace=workspace, out=out, backend=backend)
        return out

    return run


def _groups(inputs: AttentionInputs) -> list[tuple[int, int, AttentionInputs]]:
    """(first row, end row, inputs) of the chunks and of the decodes, which lie one after the other; views of q."""
    case, starts = inputs.case, inputs.cu_seqlens_q.tolist()
    decodes = [q_len == 1 for q_len in case.q_lens]
    cut = decodes.index(True) if True in decodes else len(decodes)
    parts = []
    for first, end in ((0, cut), (cut, len(decodes))):
        if first == end:
            continue
        begin, stop = starts[first], starts[end]
        facts = case.but(q_lens=case.q_lens[first:end], kv_lens=case.kv_lens[first:end])
        cu = inputs.cu_seqlens_q[first : end + 1] - begin
        part = dataclasses.replace(
            inputs,
            case=facts,
            q=inputs.q[begin:stop],
            block_table=inputs.block_table[first:end],
            cu_seqlens_q=cu,
            seq_lens=inputs.seq_lens[first:end],
        )
        parts.append((begin, stop, part))
    return parts


@dataclasses.dataclass(frozen=True)
class Ours:
    """One backend; with `apart`, chunks and decodes in a call of their own, one after the other."""

    backend: str
    apart: bool = False
    INSTALL: str = ""
    DEVICES: tuple[str, ...] = ("cpu", "cuda")

    @property
    def LABEL(self) -> str:
        return f"chunkattn {self.backend}" + (", two calls" if self.apart else "")

    def missing(self) -> str | None:
        return None

    def refuses(self, case: BenchCase) -> str | None:
        mixed = {q == 1 for q in case.q_lens} == {True, False}
        return None if mixed or not self.apart else "one kind of request"

    def prepare(self, inputs: AttentionInputs) -> Call:
        out = torch.empty(*inputs.q.shape[:2], inputs.v_cache.shape[3], dtype=inputs.q.dtype, device=inputs.q.device)
        if not self.apart:
            return planned(inputs, self.backend, out)
        calls = [planned(part, self.backend, out[begin:end]) for begin, end, part in _groups(inputs)]

        def run() -> torch.Tensor:
            for call in calls:
                call()
            return out

        return run


@dataclasses.dataclass(frozen=True)
class PeerApart:
    """A peer, called for chunks and then for decodes; their outputs are put together, which takes microseconds."""

    peer: Provider

    @property
    def LABEL(self) -> str:
        return f"{self.peer.LABEL}, two calls"

    @property
    def INSTALL(self) -> str:
        return self.peer.INSTALL

    DEVICES: tuple[str, ...] = ("cuda",)

    def missing(self) -> str | None:
        return self.peer.missing()

    def refuses(self, case: BenchCase) -> str | None:
        return self.peer.refuses(case) or Ours("", apart=True).refuses(case)

    def prepare(self, inputs: AttentionInputs) -> Call:
        calls = [self.peer.prepare(part) for _, _, part in _groups(inputs)]
        return lambda: torch.cat([call() for call in calls])


def contenders_for(backends: tuple[str, ...], device: torch.device) -> dict[str, Any]:
    """Everybody who is timed on a workload, by key."""
    found: dict[str, Any] = {f"ours-{name}": Ours(name) for name in backends}
    found |= {f"two-calls-{name}": Ours(name, apart=True) for name in backends}
    if device.type == "cuda":
        found |= {name: providers.load(name) for name in providers.for_device("cuda") if name not in providers.OURS}
        found["two-calls-flash-attn-2"] = PeerApart(providers.load("flash-attn-2"))
    return found


def cell_of(case: BenchCase, backends: tuple[str, ...], device: torch.device) -> dict[str, Any]:
    """A workload's times, beside the machine's limits in the same rounds; the cell as a result file has it."""
    counts = work.count(case)
    sets = [device_inputs(case, index, device) for index in range(min(4, 1 + _COLD_BYTES // max(1, counts.bytes)))]
    steps = [
        Step(
            inputs,
            gate.sample(inputs, pieces=3, rows=3),
            _negated(inputs),
            torch.zeros(inputs.q.shape[0], dtype=torch.bool, device=device),
        )
        for inputs in sets
    ]
    facts = {name: getattr(case, name) for name in ("key", "suite", "name", "dtype", "kv_dtype", "page_size", "layout")}
    cell = Cell(
        **facts,
        axes={},
        requests=[list(group) for group in case.requests],
        heads=dataclasses.asdict(case.heads),
        flops=counts.flops,
        bytes=counts.bytes,
        kv_bytes=counts.kv_bytes,
        exps=counts.exps,
        buffers=len(sets),
    )
    admitted = {}
    for key, module in contenders_for(backends, device).items():
        contender = _admit(key, module, case, steps, cell, device)
        if contender is not None:
            admitted[contender.name] = contender
    dry = device.type != "cuda"
    rates = [
        limits.matmul(DTYPES[case.dtype], device, size=_DRY_MATMUL if dry else None),
        limits.copy(device, elements=_DRY_COPY if dry else None),
        limits.paged_read(list(sets)),
    ]
    ceilings = {limit.name: Contender(limit.name, limit.calls) for limit in rates}
    cell.clocks_mhz.append(machine.clock_mhz(device))
    interleave([*admitted.values(), *ceilings.values()], _QUICK if dry else _EFFORT, device=device)
    cell.clocks_mhz.append(machine.clock_mhz(device))
    for name, contender in admitted.items():
        entry = cell.provider(name)
        assert entry is not None
        if contender.refused:
            entry.status, entry.reason = "refused", contender.refused
        else:
            entry.samples = contender.samples()
    for limit in rates:
        entry = Measured(limit.name, limit.unit, "measured", samples=ceilings[limit.name].samples())
        cell.limits[limit.name] = entry
        cell.rates[limit.name] = limit.amount / entry.ceiling_seconds
    bound = work.floor(counts, flops_per_s=cell.rates["matmul"], bytes_per_s=cell.rates["copy"])
    cell.floor_s, cell.bound = bound.overlap_s, bound.bound
    plain: dict[str, Any] = Record(cells=[cell]).to_json()["cells"][0]
    return plain


def _negated(inputs: AttentionInputs) -> gate.Expected:
    inputs.q.neg_()
    expected = gate.sample(inputs, pieces=2, rows=2)
    inputs.q.neg_()
    return expected


def _admit(
    key: str, module: Any, case: BenchCase, steps: list[Step], cell: Cell, device: torch.device
) -> Contender | None:
    """Prepares and checks a contender, as graph replays on a GPU; writes into the cell why not, if not."""
    graph = device.type == "cuda"
    entry = Measured(f"{key}+graph" if graph else key, f"{module.LABEL}, graph" if graph else module.LABEL, "measured")
    cell.providers.append(entry)
    reason = module.missing()
    if reason is not None:
        entry.status, entry.reason = "missing", reason
        return None
    reason = module.refuses(case)
    if reason is not None:
        entry.status, entry.reason = "unsupported", reason
        return None
    try:
        try:
            return _checked(entry, module, steps, graph)
        except RuntimeError as error:
            if not graph or "CUDA error" in str(error):
                raise
            entry.provider, entry.label = key, module.LABEL
            entry.notes.append(f"not captured: {str(error).splitlines()[0][:200]}")
            return _checked(entry, module, steps, False)
    except gate.Refused as error:
        entry.status, entry.reason = "refused", str(error)
    except Exception as error:  # a peer may raise anything; the others go on
        if "CUDA error" in str(error):
            raise
        entry.status, entry.reason = "failed", f"{type(error).__name__}: {str(error)[:300]}"
    return None


def _checked(entry: Measured, module: Any, steps: list[Step], graph: bool) -> Contender:
    calls: list[Callable[[], torch.Tensor]] = []
    watch = Watch(steps)
    for step in steps:
        call = module.prepare(step.inputs)
        calls.append(captured(call) if graph else call)
        watch.admit(step, calls[-1])
    entry.error = watch.error
    return Contender(entry.provider, calls, watch)


def _timed_us(call: Call, device: torch.device) -> float:
    if device.type == "cuda":
        call = captured(call)
    done = timing.window(call, seconds=0.2 if device.type == "cuda" else 0.01, min_calls=20, device=device)
    return done.median_s * 1e6


def decode_us(backend: str, device: torch.device) -> float:
    """One decode of 1,024 keys of a Llama-3-8B layer, planned ahead."""
    inputs = device_inputs(BenchCase("small", "decode", ((1, 1, 1023),)), 0, device)
    out = torch.empty_like(inputs.q)
    return _timed_us(planned(inputs, backend, out), device)


def plan_us(backend: str, device: torch.device) -> float:
    """A plan for a chunk and 255 decodes."""
    case = BenchCase("small", "plan", ((1, 512, 8192), (255, 1, 4095))).attention_case()
    starts = torch.tensor([0, *case.q_lens]).cumsum(0).int().to(device)
    lens = torch.tensor(case.kv_lens, dtype=torch.int32, device=device)
    facts = {"num_q_heads": 32, "num_kv_heads": 8, "head_dim": 128, "page_size": 16, "dtype": torch.bfloat16}
    bounds = {"max_tokens": 1024, "max_seq_len": 16384}
    return _timed_us(lambda: chunkattn.plan(starts, lens, **facts, **bounds, backend=backend).words, device)  # type: ignore[arg-type]


def reach(device: torch.device) -> dict[str, Any]:
    """Read rates of 8 … all multiprocessors: how far beyond its fair share of the bandwidth one of them gets."""
    if device.type != "cuda":
        return {"ran": False, "reason": "no CUDA device"}
    import gpu_reach

    return gpu_reach.measure(device)

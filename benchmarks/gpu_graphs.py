"""What must hold of every call on a GPU: no wait for the device, one graph for all mixes, caches written right."""

from __future__ import annotations

import random
from typing import Any

import gpu_times
import torch

import chunkattn
from chunkattn.bench.case import BenchCase
from chunkattn.testing import (
    AttentionCase,
    append_kv_oracle,
    assert_bitwise_equal,
    assert_rows_close,
    assert_state_close,
    build,
    merge_states_oracle,
)

_TOKENS, _REQUESTS, _PAGES, _PAGE_SIZE, _LONGEST = 512, 40, 2000, 16, 6000
_HEADS, _KV_HEADS, _DIM = 16, 4, 128


def no_sync(backend: str, device: torch.device) -> dict[str, Any]:
    """Runs every op where a wait for the device raises; the second time, when everything is compiled and cached."""
    entry: dict[str, Any] = {"backend": backend, "ran": False, "right": False, "count": 0, "error": ""}
    if device.type != "cuda":
        return entry | {"error": "no CUDA device"}
    inputs = gpu_times.device_inputs(BenchCase("sync", "mixed", ((1, 100, 3000), (6, 1, 2000))), 0, device)
    out = torch.empty_like(inputs.q)
    state, logsum = torch.empty_like(out), torch.zeros(out.shape[:2], device=device)
    k, v = (torch.randn(out.shape[0], 8, 128, device=device, dtype=out.dtype) for _ in range(2))
    pages = torch.tensor([0, 1], device=device)
    facts = {"num_q_heads": 32, "num_kv_heads": 8, "head_dim": 128, "page_size": 16, "dtype": out.dtype}

    def everything() -> int:
        plan = chunkattn.plan(
            inputs.cu_seqlens_q, inputs.seq_lens, **facts, max_tokens=128, max_seq_len=4096, backend=backend
        )  # type: ignore[arg-type]
        workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device)
        pool = inputs.k_cache, inputs.v_cache
        chunkattn.append_kv(k, v, *pool, *inputs.batch()[3:], backend=backend)
        chunkattn.attention(*inputs.batch(), out=out, backend=backend)
        chunkattn.attention(*inputs.batch(), out=out, plan=plan, workspace=workspace, backend=backend)
        chunkattn.merge_states(out, logsum, out, logsum, out=state, lse=torch.empty_like(logsum), backend=backend)
        block = chunkattn.gather_pages(inputs.k_cache, pages, backend=backend)
        chunkattn.scatter_pages(block, inputs.k_cache, pages, backend=backend)
        chunkattn.copy_pages(inputs.k_cache, pages[:1], pages[1:], backend=backend)
        return 8

    try:
        everything()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        count = everything()
    except chunkattn.UnsupportedError as error:
        return entry | {"error": str(error)}
    except RuntimeError as error:
        if "CUDA error" in str(error):
            raise
        return entry | {"ran": True, "error": str(error)}
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return entry | {"ran": True, "right": True, "count": count}


def _draw(rng: random.Random) -> tuple[list[int], list[int]]:
    """Lengths of a mix that fits the tensors; empty requests and requests without keys among them."""
    q_lens, kv_lens, left = [], [], _TOKENS
    for _ in range(_REQUESTS):
        q_len = min(left, rng.choice([0, 1, 1, 1, 1, 3, 9, rng.randint(1, 200)]))
        left -= q_len
        kv_len = q_len + int(_LONGEST ** rng.random()) - 1
        q_lens.append(q_len)
        kv_lens.append(0 if q_len == 0 and rng.random() < 0.5 else kv_len)
    return q_lens, kv_lens


def replays(backend: str, device: torch.device, mixes: int) -> dict[str, Any]:
    """One captured call, replayed on random mixes: the same bits as a fresh call. On a CPU both are calls."""
    entry: dict[str, Any] = {"backend": backend, "ran": False, "right": False, "count": 0, "error": ""}
    rng = random.Random(0)
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).bfloat16()

    columns = -(-(_LONGEST + _TOKENS) // _PAGE_SIZE)
    q = normal(_TOKENS, _HEADS, _DIM)
    pools = [normal(_PAGES, _PAGE_SIZE, _KV_HEADS, _DIM) for _ in range(2)]
    table = torch.zeros(_REQUESTS, columns, dtype=torch.int32, device=device)
    starts = torch.zeros(_REQUESTS + 1, dtype=torch.int32, device=device)
    lens = torch.zeros(_REQUESTS, dtype=torch.int32, device=device)
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], device=device)

    def call(target: torch.Tensor, logsum: torch.Tensor) -> torch.Tensor:
        chunkattn.attention(q, *pools, table, starts, lens, out=target, lse=logsum, return_lse=True, backend=backend)
        return target

    def load(step: int) -> None:
        q_lens, kv_lens = _draw(rng) if step else ([_TOKENS] + [0] * (_REQUESTS - 1), [_LONGEST] * _REQUESTS)
        starts.copy_(torch.tensor([0, *q_lens]).cumsum(0).int())
        lens.copy_(torch.tensor(kv_lens, dtype=torch.int32))
        table.copy_(torch.randint(0, _PAGES, table.shape, generator=generator, device=device, dtype=torch.int32))

    load(0)
    try:
        call(out, lse)
    except chunkattn.UnsupportedError as error:
        return entry | {"error": str(error)}
    replay = lambda: call(out, lse)  # noqa: E731 - replaced where there are graphs
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call(out, lse)
        replay = graph.replay
    entry["ran"] = True
    for step in range(mixes):
        load(step + 1)
        out.fill_(float("nan"))
        lse.fill_(float("nan"))
        replay()
        again, logsum = torch.full_like(out, float("nan")), torch.full_like(lse, float("nan"))
        call(again, logsum)
        if not (torch.equal(out, again) and torch.equal(lse, logsum)):
            return entry | {"count": step, "error": f"mix {step}: {int((out != again).sum())} values differ"}
    return entry | {"right": True, "count": mixes}


def check_cache_ops(backend: str, device: torch.device, *, small: bool) -> list[dict[str, Any]]:
    """append_kv, merge_states and the page moves against their oracles."""
    chosen = {"append_kv": _append, "merge_states": _merge, "pages": _pages}
    return [_verdict(backend, what, check, device, small) for what, check in chosen.items()]


def _verdict(backend: str, what: str, check: Any, device: torch.device, small: bool) -> dict[str, Any]:
    entry = {"backend": backend, "what": what, "served": True, "right": True, "error": ""}
    try:
        check(backend, device, small)
    except chunkattn.UnsupportedError as error:
        entry |= {"served": False, "error": str(error)}
    except AssertionError as error:
        entry |= {"right": False, "error": str(error)[:500]}
    return entry


def _append(backend: str, device: torch.device, small: bool) -> None:
    lengths = ((1, 0, 7), (5, 9, 40)) if small else ((1, 0, 200, 1), (4000, 9, 1000, 131))
    angle = torch.arange(5000)[:, None] * 10000.0 ** (-torch.arange(0, 128, 2) / 128)
    rope = chunkattn.Rope(angle.cos().to(device), angle.sin().to(device))
    for kv_dtype, mode in ((None, "none"), (torch.float8_e4m3fn, "head"), (torch.int8, "token_head")):
        case = AttentionCase("append", *lengths, head_dim=128, kv_dtype=kv_dtype, scale_mode=mode)  # type: ignore[arg-type]
        inputs = build(case, poison="zero", device=device)
        k, v = (torch.randn(inputs.q.shape[0], case.num_kv_heads, 128, device=device).bfloat16() for _ in range(2))
        batch = inputs.k_cache, inputs.v_cache, *inputs.batch()[3:]
        options = {"k_scale": inputs.k_scale, "v_scale": inputs.v_scale}
        expected = append_kv_oracle(k, v, *batch, **options, rope=rope)
        chunkattn.append_kv(k, v, *batch, **options, rope=rope, backend=backend)
        assert_bitwise_equal(inputs.v_cache.cpu(), expected.v_cache, name=f"v_cache {kv_dtype}")
        if kv_dtype is None:
            assert_rows_close(inputs.k_cache, expected.k_cache.double(), name="k_cache")


def _merge(backend: str, device: torch.device, small: bool) -> None:
    shape = (3, 4, 128) if small else (40, 8, 128)
    for dtype in (torch.bfloat16, torch.float32):
        states = [torch.randn(shape, device=device).to(dtype) for _ in range(2)]
        weights = [3 * torch.randn(shape[:2], device=device) for _ in range(2)]
        got = chunkattn.merge_states(states[0], weights[0], states[1], weights[1], backend=backend)
        on_host = [tensor.cpu() for pair in zip(states, weights, strict=True) for tensor in pair]
        assert_state_close((got[0].cpu(), got[1].cpu()), merge_states_oracle(*on_host))


def _pages(backend: str, device: torch.device, small: bool) -> None:
    pool = torch.randn(8 if small else 400, 8, 16, 128, device=device).bfloat16().transpose(1, 2)
    before = pool.clone()
    pages = torch.tensor([5, 0, 3], device=device)
    block = chunkattn.gather_pages(pool, pages, backend=backend)
    assert_bitwise_equal(block, before[pages], name="gathered")
    chunkattn.scatter_pages(block, pool, pages - pages + torch.tensor([1, 2, 7], device=device), backend=backend)
    assert_bitwise_equal(pool[torch.tensor([1, 2, 7], device=device)], before[pages], name="scattered")
    chunkattn.copy_pages(pool, pages[:1], pages[1:2], backend=backend)
    assert_bitwise_equal(pool[0], before[5], name="copied")

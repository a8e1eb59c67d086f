"""The torch operators ``torch.ops.chunkattn.*``: schemas, implementations, fakes.

An implementation validates, chooses a backend and calls it, so that whoever calls an op directly is checked as well.
Defined with ``Library.define/impl`` and not the ``custom_op`` decorator, which costs ten times as much a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from chunkattn import validate
from chunkattn.args import AppendArgs, AttentionArgs, MergeArgs, PlanArgs
from chunkattn.env import SETTINGS
from chunkattn.planning import choose, contents
from chunkattn.types import AttentionSpec
from chunkattn.validate import overlap

_Args = TypeVar("_Args", bound=NamedTuple)

_LIBRARY = torch.library.Library("chunkattn", "DEF")

_SCHEMAS = (
    "attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor cu_seqlens_q, Tensor seq_lens, "
    "Tensor(a!) out, Tensor(b!)? lse, Tensor? alibi_slopes, Tensor? sinks, Tensor? tree_mask, Tensor? k_scale, "
    "Tensor? v_scale, Tensor? plan, Tensor(c!)? workspace, float softmax_scale, bool causal, int window_left, "
    "int window_right, float softcap, bool invariant, int num_splits, str? backend) -> ()",
    "append_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor block_table, Tensor cu_seqlens_q, "
    "Tensor seq_lens, Tensor? slot_mapping, Tensor(c!)? k_scale, Tensor(d!)? v_scale, Tensor(e!)? q, Tensor? rope_cos, "
    "Tensor? rope_sin, Tensor? rope_positions, bool rope_interleaved, str? backend) -> ()",
    "merge_states(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b, Tensor(a!) out, Tensor(b!) lse, "
    "str? backend) -> ()",
    "plan(Tensor cu_seqlens_q, Tensor seq_lens, Tensor(a!) words, int num_q_heads, int num_kv_heads, int head_dim, "
    "int head_dim_v, int page_size, ScalarType dtype, bool causal, int window_left, int window_right, "
    "bool invariant, int num_splits, str layout, str? backend) -> ()",
    "copy_pages(Tensor(a!) cache, Tensor source, Tensor target, str? backend) -> ()",
    "gather_pages(Tensor cache, Tensor pages, Tensor(a!) out, str? backend) -> ()",
    "scatter_pages(Tensor block, Tensor(a!) cache, Tensor pages, str? backend) -> ()",
)


def _facts(check: Callable[[_Args], AttentionSpec], args: _Args) -> AttentionSpec:
    """What `check` finds. The dispatcher lets None pass for a tensor; that is named as any other stranger is."""
    try:
        return check(args)
    except AttributeError:
        validate.argument_types(args)
        raise


def _attention(*values: Any) -> None:
    args = AttentionArgs._make(values)
    spec = _facts(validate.attention, args)
    overlap.attention(args)
    backend = choose.backend(spec, args.backend)
    if SETTINGS.debug:
        contents.check_attention(args)
        contents.check_factors(alibi_slopes=args.alibi_slopes, sinks=args.sinks)
    backend.attention(args)


def _attention_cpu(*values: Any) -> None:
    # The dispatcher takes this path only if every tensor is on the CPU.
    args = AttentionArgs._make(values)
    if SETTINGS.debug or not choose.first("cpu").repeat_attention(args):
        _attention(*values)


def _append_kv(*values: Any) -> None:
    args = AppendArgs._make(values)
    spec = _facts(validate.append_kv, args)
    overlap.append_kv(args)
    backend = choose.backend(spec, args.backend)
    if SETTINGS.debug:
        contents.check_append(args)
    backend.append_kv(args)


def _append_kv_cpu(*values: Any) -> None:
    args = AppendArgs._make(values)
    if SETTINGS.debug or not choose.first("cpu").repeat_append_kv(args):
        _append_kv(*values)


def _merge_states(*values: Any) -> None:
    args = MergeArgs._make(values)
    spec = _facts(validate.merge_states, args)
    overlap.merge_states(args)
    choose.backend(spec, args.backend).merge_states(args)


def _plan(*values: Any) -> None:
    args = PlanArgs._make(values)
    spec = _facts(validate.plan, args)
    overlap.plan(args)
    choose.backend(spec, args.backend).plan(args)


def _copy_pages(cache: Tensor, source: Tensor, target: Tensor, backend: str | None) -> None:
    spec = validate.copy_pages(cache, source, target)
    overlap.apart((("cache", cache),), (("source", source), ("target", target)))
    choose.backend(spec, backend).copy_pages(cache, source, target)


def _gather_pages(cache: Tensor, pages: Tensor, out: Tensor, backend: str | None) -> None:
    spec = validate.gather_pages(cache, pages, out)
    overlap.apart((("out", out),), (("cache", cache), ("pages", pages)))
    choose.backend(spec, backend).gather_pages(cache, pages, out)


def _scatter_pages(block: Tensor, cache: Tensor, pages: Tensor, backend: str | None) -> None:
    spec = validate.scatter_pages(block, cache, pages)
    overlap.apart((("cache", cache),), (("block", block), ("pages", pages)))
    choose.backend(spec, backend).scatter_pages(block, cache, pages)


# Fakes check what needs no memory, and write nothing.


def _fake_attention(*values: Any) -> None:
    validate.attention(AttentionArgs._make(values))


def _fake_append_kv(*values: Any) -> None:
    validate.append_kv(AppendArgs._make(values))


def _fake_merge_states(*values: Any) -> None:
    validate.merge_states(MergeArgs._make(values))


def _fake_plan(*values: Any) -> None:
    validate.plan(PlanArgs._make(values))


def _fake_copy_pages(cache: Tensor, source: Tensor, target: Tensor, backend: str | None) -> None:
    validate.copy_pages(cache, source, target)


def _fake_gather_pages(cache: Tensor, pages: Tensor, out: Tensor, backend: str | None) -> None:
    validate.gather_pages(cache, pages, out)


def _fake_scatter_pages(block: Tensor, cache: Tensor, pages: Tensor, backend: str | None) -> None:
    validate.scatter_pages(block, cache, pages)


_CPU: dict[Callable[..., None], Callable[..., None]] = {_attention: _attention_cpu, _append_kv: _append_kv_cpu}


def _define(schema: str, impl: Callable[..., None], fake: Callable[..., None]) -> None:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, _CPU.get(impl, impl), "CPU")
    _LIBRARY.impl(name, impl, "CUDA")
    torch.library.register_fake(f"chunkattn::{name}", fake, lib=_LIBRARY)


for _schema, _impl, _fake in zip(
    _SCHEMAS,
    (_attention, _append_kv, _merge_states, _plan, _copy_pages, _gather_pages, _scatter_pages),
    (
        _fake_attention,
        _fake_append_kv,
        _fake_merge_states,
        _fake_plan,
        _fake_copy_pages,
        _fake_gather_pages,
        _fake_scatter_pages,
    ),
):
    _define(_schema, _impl, _fake)

attention = torch.ops.chunkattn.attention.default
append_kv = torch.ops.chunkattn.append_kv.default
merge_states = torch.ops.chunkattn.merge_states.default
plan = torch.ops.chunkattn.plan.default
copy_pages = torch.ops.chunkattn.copy_pages.default
gather_pages = torch.ops.chunkattn.gather_pages.default
scatter_pages = torch.ops.chunkattn.scatter_pages.default

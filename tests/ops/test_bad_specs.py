"""`supports`, `explain` and `workspace_bytes` refuse what the operators refuse, in the same words."""

from __future__ import annotations

import pytest
import torch

import chunkattn

V, T = ValueError, TypeError
SPEC = chunkattn.AttentionSpec("cpu", torch.bfloat16, torch.bfloat16, 4, 2, 64, 64, 16)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"head_dim": 300}, "spec.head_dim: expected a multiple of 8 up to 256, got 300"),
        ({"head_dim_v": 12}, "spec.head_dim_v: expected a multiple of 8"),
        ({"num_q_heads": 5}, "spec.num_q_heads: expected a positive multiple of num_kv_heads 2, got 5"),
        ({"page_size": 0}, "spec.page_size: expected at least 1, got 0"),
        ({"page_size": 2**70}, "spec.page_size: expected at most 2147483647, got 1180591620717411303424"),
        ({"device": "cuda:0"}, "spec.device: expected a device type such as 'cpu' or 'cuda', got 'cuda:0'"),
        ({"device": "foo"}, "spec.device: expected a device type such as 'cpu' or 'cuda', got 'foo'"),
        ({"op": "foo"}, "spec.op: expected one of attention, plan, append_kv, merge_states, pages, got 'foo'"),
        ({"dtype": torch.float64}, "spec.dtype: expected bfloat16"),
        ({"kv_dtype": torch.float16}, "spec.kv_dtype: expected torch.bfloat16, float8_e4m3fn"),
        ({"kv_scale": "row"}, "spec.kv_scale: expected 'none'"),
        ({"kv_scale": "head"}, "spec.kv_scale: expected 'none' for a cache of torch.bfloat16"),
    ],
)
def test_nobody_supports_what_the_operators_refuse(change, reason):
    spec = SPEC._replace(**change)
    support = chunkattn.supports(spec)
    assert not support
    assert reason in support.reasons[0]
    assert reason in chunkattn.explain(spec)
    with pytest.raises(ValueError, match="spec"):
        chunkattn.workspace_bytes(spec, max_tokens=1, max_seq_len=1)


def test_maxima_and_specs_of_wrong_types():
    for change, error in (({"max_tokens": -1}, V), ({"max_seq_len": 2.5}, T), ({"num_splits": True}, V)):
        with pytest.raises(error, match=f"^{next(iter(change))}: expected"):
            chunkattn.workspace_bytes(SPEC, **{"max_tokens": 1, "max_seq_len": 1, **change})
    for call in (chunkattn.supports, chunkattn.explain):
        with pytest.raises(TypeError, match=r"spec: expected a chunkattn.AttentionSpec, got str"):
            call("cpu")
        with pytest.raises(TypeError, match=r"spec.head_dim: expected an integer, got float"):
            call(SPEC._replace(head_dim=64.0))
        for change, message in (
            ({"causal": None}, "spec.causal: expected True or False, got NoneType"),
            ({"device": []}, "spec.device: expected a name, got list"),
            ({"kv_scale": 3}, "spec.kv_scale: expected a name, got int"),
            ({"dtype": "bf16"}, "spec.dtype: expected a torch.dtype, got str"),
        ):
            with pytest.raises(TypeError, match=message):
                call(SPEC._replace(**change))
    for backend in (3, []):
        with pytest.raises(TypeError, match=r"backend: expected a name or None, got (int|list)"):
            chunkattn.supports(SPEC, backend=backend)
        with pytest.raises(TypeError, match=r"backend: expected a name or None, got (int|list)"):
            chunkattn.workspace_bytes(SPEC, max_tokens=1, max_seq_len=1, backend=backend)


def test_maxima_beyond_what_lengths_can_be_change_nothing():
    most = chunkattn.workspace_bytes(SPEC, max_tokens=2**31 - 1, max_seq_len=2**31 - 1, num_splits=8)
    assert most > 0
    for beyond in (2**31, 2**62, 2**63, 2**70):
        assert chunkattn.workspace_bytes(SPEC, max_tokens=beyond, max_seq_len=beyond, num_splits=8) == most


def test_an_unsupported_device_lists_reasons():
    spec = chunkattn.AttentionSpec("cuda", torch.bfloat16, torch.bfloat16, 4, 2, 64, 64, 16)
    support = chunkattn.supports(spec, backend="cpu")
    assert not support
    assert "cpu" in str(support.reasons)

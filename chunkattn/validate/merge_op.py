"""What `merge_states` accepts."""

from __future__ import annotations

from chunkattn.args import MergeArgs
from chunkattn.types import DTYPES, MAX_HEAD_DIM, AttentionSpec
from chunkattn.validate.sentences import bad_dtype, bad_shape
from chunkattn.validate.tensor import contiguous_last, fp32_vector, no_gradients, on_device, written


def merge_states(a: MergeArgs) -> AttentionSpec:
    """Checks one merge_states call and returns its facts."""
    out_a = a.out_a
    if out_a.dim() != 3:
        bad_shape("out_a", out_a, "[T, H, Dv]")
    if out_a.dtype not in DTYPES:
        bad_dtype("out_a", out_a, "bfloat16, float16 or float32")
    if not 1 <= out_a.shape[2] <= MAX_HEAD_DIM:
        bad_shape("out_a", out_a, f"a head dim from 1 to {MAX_HEAD_DIM}")
    for arg, state in (("out_a", out_a), ("out_b", a.out_b), ("out", a.out)):
        if state.shape != out_a.shape:
            bad_shape(arg, state, f"{list(out_a.shape)}, that of out_a")
        if state.dtype != out_a.dtype:
            bad_dtype(arg, state, f"{out_a.dtype}, the dtype of out_a")
        on_device(arg, state, out_a.device)
        contiguous_last(arg, state)
    for arg, lse in (("lse_a", a.lse_a), ("lse_b", a.lse_b), ("lse", a.lse)):
        fp32_vector(arg, lse, (tuple(out_a.shape[:2]),), out_a.device)
    no_gradients(out_a=out_a, out_b=a.out_b, out=a.out, lse_a=a.lse_a, lse_b=a.lse_b, lse=a.lse)
    written(out=a.out, lse=a.lse)
    _, heads, dim = out_a.shape
    return AttentionSpec(out_a.device.type, out_a.dtype, out_a.dtype, heads, heads, dim, dim, 1, op="merge_states")

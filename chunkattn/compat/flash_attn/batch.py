"""A batch of equally long sequences."""

from __future__ import annotations

from torch import Tensor

from chunkattn.compat.flash_attn.call import Window
from chunkattn.compat.flash_attn.kvcache import flash_attn_with_kvcache
from chunkattn.compat.refusals import foreign_names, refuse_unless
from chunkattn.compat.tensor_arguments import check_tensors


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Attention of a batch of equally long sequences: q [B, Sq, Hq, D], k and v [B, Sk, Hkv, D].

    Arguments and errors are those of `flash_attn_varlen_func`; lse is [B, Hq, Sq].
    """
    refuse_unless("flash_attn_func", dropout_p=(dropout_p, 0.0))
    check_tensors(q=(q, "[B, Sq, Hq, D]"), k=(k, "[B, Sk, Hkv, D]"), v=(v, "[B, Sk, Hkv, Dv]"))
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k: expected {q.shape[0]} sequences, as many as q has, got {k.shape[0]}")
    with foreign_names(k_cache="k", v_cache="v"):
        out, lse = flash_attn_with_kvcache(
            q,
            k,
            v,
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=window_size,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            return_softmax_lse=True,
        )
    return (out, lse, out.new_empty(0)) if return_attn_probs else out

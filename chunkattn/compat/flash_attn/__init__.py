"""FlashAttention 2's functions, ``from flash_attn import …``, over chunkattn's operators.

The positional order is FlashAttention 2's. What FlashAttention 3 and vLLM's fork call otherwise, or have besides, is
taken by keyword: page_table, cu_seqlens_q, seqused_q, seqused_k, k_descale, s_aux, out, …; `flash_attn_interface` has
FlashAttention 3's order.

Every argument is honoured or refused by name. Hints that change no result (`deterministic`: always so; `pack_gqa`,
`fa_version`; `max_seqlen_q`: read off the tensors) are accepted. Differences that remain:

- a row that sees no key has lse -inf, the neutral state of a merge, where FlashAttention 2 writes +inf;
- no gradients, no dropout;
- caches may have any page size, and fp32 tensors, fp8 and int8 caches work as well.

Log-sum-exps are [Hq, T] (packed) or [B, Hq, Sq], natural log, as theirs are.
"""

from __future__ import annotations

from chunkattn.compat.flash_attn.batch import flash_attn_func
from chunkattn.compat.flash_attn.kvcache import flash_attn_with_kvcache
from chunkattn.compat.flash_attn.varlen import flash_attn_varlen_func

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

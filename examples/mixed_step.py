"""One call serves a chunk of a prompt and two decodes over one paged KV cache."""

import argparse

import torch

import chunkattn

argparse.ArgumentParser(description=__doc__).parse_args()  # no options, but --help

layers, q_heads, kv_heads, head_dim, page_size = 2, 32, 8, 128, 16
caches = [chunkattn.PagedKV.allocate(64, page_size, kv_heads, head_dim) for _ in range(layers)]
pages = [list(range(32)), [40, 35, 44, 41, 38], [50, 63, 57, 52, 61, 60, 51, 54, 58]]  # any order, per request
angles = torch.outer(torch.arange(512.0), 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim))
rope = chunkattn.Rope(angles.cos(), angles.sin())

# Step 1: the first 300 tokens of a long prompt, and two short prompts. Step 2: its next 200, and two decodes.
for q_lens, kv_lens in (([300, 76, 129], [300, 76, 129]), ([200, 1, 1], [500, 77, 130])):
    batch = chunkattn.Batch.from_lists(q_lens, kv_lens, pages)
    table, cu_seqlens_q, seq_lens = batch.block_table, batch.cu_seqlens_q, batch.seq_lens
    plan = chunkattn.plan(cu_seqlens_q, seq_lens, num_q_heads=q_heads, num_kv_heads=kv_heads, head_dim=head_dim,
                          page_size=page_size, dtype=torch.bfloat16)  # fmt: skip
    for kv in caches:  # every layer reuses the plan
        q, k, v = (torch.randn(sum(q_lens), heads, head_dim).bfloat16() for heads in (q_heads, kv_heads, kv_heads))
        chunkattn.append_kv(k, v, kv.k_cache, kv.v_cache, table, cu_seqlens_q, seq_lens, rope=rope, q=q)
        out = chunkattn.attention(q, kv.k_cache, kv.v_cache, table, cu_seqlens_q, seq_lens, plan=plan)
    print(f"{q_lens} new tokens over {kv_lens} keys -> out {list(out.shape)}")

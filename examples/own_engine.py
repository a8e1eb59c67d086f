"""Your own engine: continuous batching with chunked prefill over one paged cache; a toy model of one layer."""

import argparse

import torch

import chunkattn

argparse.ArgumentParser(description=__doc__).parse_args()  # no options, but --help

page, budget, q_heads, kv_heads, dim, vocab, num_pages = 16, 32, 8, 2, 64, 1000, 64
torch.manual_seed(0)
embedding, w_qkv = torch.randn(vocab, q_heads * dim), torch.randn(q_heads * dim, (q_heads + 2 * kv_heads) * dim) / 20
kv = chunkattn.PagedKV.allocate(num_pages, page, kv_heads, dim, dtype=torch.float32)
free = list(range(num_pages))


class Request:
    def __init__(self, prompt: list[int], wanted: int) -> None:
        self.tokens, self.goal, self.cached, self.pages = list(prompt), len(prompt) + wanted, 0, []


def step(requests: list[Request]) -> list[int]:
    """One forward pass: all decodes, and as much of the prompts as the token budget holds."""
    chunks, room = [], budget
    for request in sorted(requests, key=lambda r: len(r.tokens) - r.cached):  # decodes miss one token: they go first
        if count := min(len(request.tokens) - request.cached, room):
            chunks, room = [*chunks, (request, count)], room - count
            request.pages += [free.pop() for _ in range(-(-(request.cached + count) // page) - len(request.pages))]
    counts, pages = [n for _, n in chunks], [r.pages for r, _ in chunks]
    batch = chunkattn.Batch.from_lists(counts, [r.cached + n for r, n in chunks], pages)
    x = embedding[[token for r, n in chunks for token in r.tokens[r.cached : r.cached + n]]]
    q, k, v = (x @ w_qkv).unflatten(1, (-1, dim)).split((q_heads, kv_heads, kv_heads), dim=1)
    pool = (kv.k_cache, kv.v_cache, batch.block_table, batch.cu_seqlens_q, batch.seq_lens)
    chunkattn.append_kv(k, v, *pool)
    hidden = chunkattn.attention(q, *pool).flatten(1)
    for (request, n), token in zip(chunks, (hidden[batch.cu_seqlens_q[1:] - 1] @ embedding.T).argmax(-1).tolist()):
        request.cached += n
        if request.cached == len(request.tokens):  # the whole prompt is in the cache: the last row is the next token
            request.tokens.append(token)
    return counts


chat, document = Request([5, 17, 3], wanted=6), Request(list(range(70)), wanted=2)
running = [chat]
while running:
    print(f"tokens of each request in this step: {step(running)}")
    running += [document] if len(chat.tokens) == 6 else []  # arrives while the chat is being answered
    for done in [r for r in running if len(r.tokens) == r.goal]:
        running.remove(done), free.extend(done.pages)
print(f"chat {chat.tokens[3:]}, document {document.tokens[70:]}, {len(free)} of {num_pages} pages free")

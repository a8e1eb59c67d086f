"""Context parallelism: the keys and values of one long prompt live on several ranks; a chunk asks all of them.

    python examples/context_parallel.py --ranks 3           # starts its ranks itself, on this machine
    torchrun --nproc-per-node 3 examples/context_parallel.py

Chunk i of the prompt belongs to rank i mod ranks, which alone stores its keys and values: no rank ever holds the whole
context. The chunk's queries go to everybody, every rank attends over the keys that it has, and the partial states
(out, lse) are merged into what one rank with all the keys would give.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor

import chunkattn
from chunkattn.testing import assert_state_close, row_budget, row_errors

Q_HEADS, KV_HEADS, DIM, PAGE = 8, 2, 64, 16


class Cache:
    """A paged cache of one request: the tokens that one rank keeps, in the order of their positions."""

    def __init__(self, capacity: int, like: Tensor) -> None:
        self.pages = torch.randperm(-(-capacity // PAGE), dtype=torch.int32).to(like.device)[None]
        self.kv = chunkattn.PagedKV.allocate(
            self.pages.shape[1], PAGE, KV_HEADS, DIM, dtype=like.dtype, device=like.device
        )
        self.length = 0

    def append(self, q: Tensor, k: Tensor, v: Tensor, rope: chunkattn.Rope) -> None:
        """Stores rotated keys, and values; rotates q in place."""
        self.length += len(k)
        chunkattn.append_kv(k, v, self.kv.k_cache, self.kv.v_cache, *self._step(len(k)), rope=rope, q=q)

    def attend(self, q: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """The partial state (out, lse) of queries over the keys that are here; none at all is a state too."""
        pools = self.kv.k_cache, self.kv.v_cache
        return chunkattn.attention(q, *pools, *self._step(len(q)), causal=causal, return_lse=True)

    def _step(self, q_len: int) -> tuple[Tensor, Tensor, Tensor]:
        lengths = torch.tensor([0, q_len, self.length], dtype=torch.int32, device=self.pages.device)
        return self.pages, lengths[:2], lengths[2:]


def project(start: int, end: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor, chunkattn.Rope]:
    """q, k and v of tokens start…end-1, as a model's layer would compute them, and their places in the prompt."""
    tokens = [torch.randn(Q_HEADS + 2 * KV_HEADS, DIM, generator=torch.manual_seed(t)) for t in range(start, end)]
    q, k, v = torch.stack(tokens).to(like).split((Q_HEADS, KV_HEADS, KV_HEADS), dim=1)
    angles = torch.outer(torch.arange(end), 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)).to(like.device)
    # A rank's cache has gaps, so a token's slot does not tell its position.
    return q.contiguous(), k, v, chunkattn.Rope(angles.cos(), angles.sin(), torch.arange(start, end).to(like.device))


def prefill(num_tokens: int, chunk: int, like: Tensor) -> tuple[Tensor, Tensor, Cache]:
    """The whole prompt, chunk by chunk: out [tokens, heads, dim] and lse [tokens, heads] on every rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    starts = range(0, num_tokens, chunk)
    cache = Cache(-(-len(starts) // ranks) * chunk, like)
    states = []
    for i, start in enumerate(starts):
        end, owner = min(start + chunk, num_tokens), i % ranks
        q = like.new_empty(end - start, Q_HEADS, DIM)
        if rank == owner:
            q, k, v, rope = project(start, end, like)
            cache.append(q, k, v, rope)
        dist.broadcast(q, owner)
        # The owner has the chunk itself at the end of its keys: causal. What the others have is all before it.
        out, lse = cache.attend(q, causal=rank == owner)
        outs, lses = ([torch.empty_like(x) for _ in range(ranks)] for x in (out, lse))
        dist.all_gather(outs, out)
        dist.all_gather(lses, lse)
        out, lse = outs[0], lses[0]
        for other_out, other_lse in zip(outs[1:], lses[1:], strict=True):
            out, lse = chunkattn.merge_states(out, lse, other_out, other_lse)
        states.append((out, lse))
    return torch.cat([out for out, _ in states]), torch.cat([lse for _, lse in states]), cache


def one_rank(num_tokens: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The same prompt as one chunk over one cache."""
    q, k, v, rope = project(0, num_tokens, like)
    cache = Cache(num_tokens, like)
    cache.append(q, k, v, rope)
    return cache.attend(q, causal=True)


def run(rank: int, ranks: int, init_method: str, args: argparse.Namespace) -> None:
    """One rank's life."""
    on_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=init_method, rank=rank, world_size=ranks)
    like = torch.empty(0, device=device)  # float32: partial states are rounded to the dtype of q
    out, lse, cache = prefill(args.tokens, args.chunk, like)
    held: list[int] = [0] * ranks
    dist.all_gather_object(held, cache.length)
    if rank == 0:
        expected, expected_lse = one_rank(args.tokens, like)
        assert_state_close((out, lse), (expected, expected_lse))
        chunks = -(-args.tokens // args.chunk)
        print(f"{args.tokens} tokens in {chunks} chunks of {args.chunk}; keys on each of {ranks} ranks: {held}")
        print(
            f"largest row error against one rank: {row_errors(out, expected).max():.2g} of {row_budget(out.dtype):.2g}"
        )
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Joins the ranks that torchrun started, or starts them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="processes, unless torchrun says")
    parser.add_argument("--tokens", type=int, default=4096, help="length of the prompt")
    parser.add_argument("--chunk", type=int, default=256, help="tokens of a chunk")
    args = parser.parse_args()
    for name in ("ranks", "tokens", "chunk"):
        if getattr(args, name) < 1:
            parser.error(f"--{name}: expected at least 1, got {getattr(args, name)}")
    if "RANK" in os.environ:
        run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", args)
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are here: nothing listens to the network
    with tempfile.TemporaryDirectory() as directory:
        torch.multiprocessing.spawn(run, (args.ranks, f"file://{directory}/rendezvous", args), nprocs=args.ranks)


if __name__ == "__main__":
    main()

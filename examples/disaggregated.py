"""Disaggregated serving: one process runs prompts, another runs answers; a prompt's pages go from one to the other.

    python examples/disaggregated.py            # SmolLM2; starts both processes itself, on this machine
    RANK=0 WORLD_SIZE=2 MASTER_ADDR=first MASTER_PORT=29500 python examples/disaggregated.py    # prompts, on "first"
    RANK=1 WORLD_SIZE=2 MASTER_ADDR=first MASTER_PORT=29500 python examples/disaggregated.py    # answers, anywhere

An answer is printed as soon as it is finished. When the prefill process dies, what has come over is still finished. The
one that is left says in one sentence who is gone, and exits with status 1.

What is said goes by gloo. Pages go from GPU to GPU by NCCL where each process has a GPU of its own, else by gloo too.
Two processes started by hand on one machine with two GPUs need LOCAL_RANK=0 and LOCAL_RANK=1; where only one of two
machines has a GPU, both need --gloo. The way over NCCL has not run on hardware yet.
"""

from __future__ import annotations

import argparse
import datetime
import os
import queue
import sys
import tempfile
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

import chunkattn
from chunkattn.models import Decoder, ModelConfig, load_model
from chunkattn.models.rope import RopeConfig
from chunkattn.models.weights import DecoderWeights, LayerWeights
from chunkattn.scheduler import Request, ScheduledBatch, Scheduler, SchedulerConfig
from chunkattn.serving import Engine, ModelExecutor

ROLES = PREFILL, DECODE = 0, 1
NAMES = ("prefill", "decode")
CONFIG = SchedulerConfig(token_budget=256, max_num_seqs=8, page_size=16, num_pages=256)
QUESTIONS = ("What is the capital of France?", "Why is the sky blue?", "Write a haiku about rain.", "What is 2 + 2?")


class PeerLostError(Exception):
    """The other process is gone, or silent for too long."""


def link(move: Callable[..., object], tensor: Tensor, peer: int) -> Tensor:
    """Sends or receives one tensor."""
    try:
        move(tensor, peer)
    except RuntimeError as error:  # what gloo raises for a closed connection and for a timeout
        raise PeerLostError(str(error)) from error
    return tensor


def place(local_rank: int, local_size: int, gloo: bool) -> tuple[torch.device, torch.device]:
    """Where a process computes, and where pages are when they are sent and received.

    Args:
        local_rank, local_size: which of how many processes on this machine it is.
        gloo: whether pages go by gloo in any case.
    """
    gpus, cpu = torch.cuda.device_count(), torch.device("cpu")
    device = torch.device("cuda", local_rank % gpus) if gpus else cpu
    return device, device if gpus >= local_size and not gloo else cpu  # NCCL wants a GPU for each process


def tiny_decoder(device: torch.device) -> Decoder:
    """A model of random weights, the same in every process."""
    generator, one = torch.Generator().manual_seed(1), torch.ones(64, device=device)
    shapes = (128, 64), (64, 64), (192, 64), (64, 96), (256, 64), (256, 64)
    weights = [(torch.randn(shape, generator=generator) / 8).to(device) for shape in shapes]
    qkv, output, gate_up, down, words, logits = weights
    layer = LayerWeights(one, qkv, None, None, None, output, None, one, gate_up, None, down, None)
    config = ModelConfig("tiny", 256, 64, 96, 2, 4, 2, 16, 1e-5, 1024, RopeConfig(10000.0, 16), (None, None))
    return Decoder(config, DecoderWeights(words * 8, (layer, layer), one, logits))


def load(args: argparse.Namespace, device: torch.device) -> tuple[Decoder, list[list[int]], frozenset[int]]:
    """The model, the prompts, which both processes know, and the tokens that end an answer."""
    if args.tiny:
        kinds = [i % 12 for i in range(args.requests)]  # equal prompts share pages, those of kind 1 all of them
        prompts = [[(kind + 7 * j) % 256 for j in range(1 + 15 * kind)] for kind in kinds]
        return tiny_decoder(device), prompts, frozenset()
    try:
        model = load_model(args.model, device=device)
    except (FileNotFoundError, ImportError) as error:
        sys.exit(f"{error} (--tiny runs without a model)")
    prompts = [model.tokenizer.encode_chat(QUESTIONS[i % len(QUESTIONS)]) for i in range(args.requests)]
    return model.decoder, prompts, model.tokenizer.eos_token_ids


def new_engine(decoder: Decoder) -> Engine:
    """A scheduler, and an executor with a cache of its own."""
    executor = ModelExecutor(decoder, num_pages=CONFIG.num_pages, page_size=CONFIG.page_size)
    return Engine(Scheduler(CONFIG), executor)


def prefill(decoder: Decoder, requests: list[Request], wire: torch.device) -> None:
    """Runs every prompt up to its first token, and sends that token and the prompt's pages."""
    engine = new_engine(decoder)
    for request in requests:
        request.max_tokens = 1
        engine.add_request(request)
    pools = [pool for layer in engine.executor.cache for pool in (layer.k_cache, layer.v_cache)]
    while engine.scheduler.has_work:
        for chunk in engine.step().batch.sampling:
            # The request is over and its pages are free, but nothing is written to them before the next step.
            pages = torch.tensor(chunk.block_table, device=decoder.device)
            number, token = int(chunk.request.request_id), chunk.request.output_token_ids[0]
            link(dist.send, torch.tensor([number, token, len(pages)]), DECODE)
            link(dist.send, torch.stack([chunkattn.gather_pages(pool, pages) for pool in pools]).to(wire), DECODE)
    link(dist.send, torch.tensor([-1, 0, 0]), DECODE)
    link(dist.recv, torch.empty(1), DECODE)  # every answer is finished


def receive(inbox: queue.Queue, decoder: Decoder, wire: torch.device) -> None:
    """Takes prompts from the link while the model computes; the last thing in the inbox is None, or why it ended."""
    page = CONFIG.page_size, decoder.config.num_kv_heads, decoder.config.head_dim
    # Pages come on a stream of their own: on the model's, steps would wait for them.
    stream = torch.cuda.Stream(wire) if wire.type == "cuda" else None
    try:
        with torch.cuda.stream(stream):
            while (header := link(dist.recv, torch.empty(3, dtype=torch.int64), PREFILL).tolist())[0] >= 0:
                shape = 2 * decoder.config.num_layers, header[2], *page
                block = link(dist.recv, torch.empty(shape, dtype=decoder.dtype, device=wire), PREFILL)
                if stream is not None:
                    stream.synchronize()
                inbox.put((*header[:2], block.to(decoder.device)))
        inbox.put(None)
    except PeerLostError as error:
        inbox.put(error)


class DecodeExecutor:
    """Puts the pages of new requests in place, then runs the step."""

    def __init__(self, executor: ModelExecutor) -> None:
        self.blocks: dict[str, Tensor] = {}  # [2 layers, pages, page_size, heads, dim] by request id
        self.executor = executor

    def __call__(self, batch: ScheduledBatch) -> dict[str, int | list[int]]:
        for chunk in batch.chunks:
            block, request = self.blocks.pop(chunk.request.request_id, None), chunk.request
            if block is not None and request.num_external_tokens:  # 0: preempted early, it computes its prompt itself
                if block.is_cuda:  # the link's stream made it: it may not have the memory back before this step is over
                    block.record_stream(torch.cuda.current_stream(block.device))
                shared = request.num_cached_tokens // CONFIG.page_size  # pages that another request has filled
                pages = torch.tensor(chunk.block_table[shared : block.shape[1]], dtype=torch.int32, device=block.device)
                for layer, (keys, values) in zip(self.executor.cache, block[:, shared:].split(2), strict=True):
                    chunkattn.scatter_pages(keys, layer.k_cache, pages)
                    chunkattn.scatter_pages(values, layer.v_cache, pages)
        return self.executor(batch)


def decode(decoder: Decoder, requests: list[Request], wire: torch.device) -> None:
    """Runs every answer from its second token on; prints it, flushed, when it is finished."""
    engine = new_engine(decoder)
    engine.executor = executor = DecodeExecutor(engine.executor)
    inbox: queue.Queue = queue.Queue(maxsize=CONFIG.max_num_seqs)  # full: the prefill process waits
    threading.Thread(target=receive, args=(inbox, decoder, wire), daemon=True).start()
    answers: dict[int, list[int]] = {}
    receiving, lost = True, None
    while receiving or engine.scheduler.has_work:
        finished = []
        while receiving and not (engine.scheduler.has_work and inbox.empty()):
            item = inbox.get()
            if not isinstance(item, tuple):
                receiving, lost = False, item
                break
            number, token, block = item
            given = requests[number]
            request = Request(given.request_id, given.prompt_token_ids, given.max_tokens, given.eos_token_ids)
            if request.take(token):
                finished.append(request)
                break
            request.num_external_tokens, executor.blocks[request.request_id] = len(given.prompt_token_ids), block
            engine.add_request(request)
        if engine.scheduler.has_work:
            finished += [request for request, _ in engine.step().tokens if request.status.is_finished]
        for request in finished:
            answers[int(request.request_id)] = request.output_token_ids
            print(f"request {request.request_id}: {request.output_token_ids}", flush=True)
    if lost:
        raise PeerLostError(f"{len(answers)} of {len(requests)} requests are finished") from lost
    link(dist.send, torch.ones(1), PREFILL)
    alone = new_engine(decoder)
    for request in requests:
        alone.add_request(request)
    alone.run()
    wrong = [request.request_id for i, request in enumerate(requests) if answers[i] != request.output_token_ids]
    if wrong:
        sys.exit(f"decode: expected the tokens of a single process, got others for requests {', '.join(wrong)}")
    print(f"{len(answers)} requests: the same tokens as in a single process", flush=True)


def run(rank: int, init_method: str, local_rank: int, local_size: int, args: argparse.Namespace) -> None:
    """One process's life."""
    device, wire = place(local_rank, local_size, args.gloo)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # who waits for a lost peer gets an error, not an abort
    decoder, prompts, eos_token_ids = load(args, device)
    requests = [Request(str(i), prompt, args.tokens, eos_token_ids) for i, prompt in enumerate(prompts)]
    timeout = datetime.timedelta(seconds=args.timeout)
    try:
        backend = "cpu:gloo,cuda:nccl" if wire.type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=2, timeout=timeout)
    except RuntimeError as error:
        sys.exit(f"{NAMES[rank]}: the {NAMES[1 - rank]} process did not come: {str(error).splitlines()[0]}")
    try:
        (prefill, decode)[rank](decoder, requests, wire)
    except PeerLostError as error:
        kept = error if rank == DECODE else "the answers that it had finished are printed"
        print(f"{NAMES[rank]}: the {NAMES[1 - rank]} process is gone; {kept}", file=sys.stderr, flush=True)
        os._exit(1)  # leaving the group would wait for the other one
    dist.destroy_process_group()


def main() -> None:
    """Becomes one of the two processes, or starts both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="smollm2, a Hugging Face directory or a .gguf file")
    parser.add_argument("--tiny", action="store_true", help="a small model of random weights instead")
    parser.add_argument("--requests", type=int, default=8, help="how many")
    parser.add_argument("--tokens", type=int, default=24, help="longest answer")
    parser.add_argument("--gloo", action="store_true", help="pages go through the CPU's memory also between GPUs")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of silence after which a peer is lost")
    args = parser.parse_args()
    for name in ("requests", "tokens", "timeout"):
        if getattr(args, name) < 1:
            parser.error(f"--{name}: expected at least 1, got {getattr(args, name):g}")
    if "RANK" in os.environ:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        return run(int(os.environ["RANK"]), "env://", local_rank, local_rank + 1, args)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # both are here: nothing listens to the network
    context = torch.multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        store = f"file://{directory}/rendezvous"
        processes = [context.Process(target=run, args=(rank, store, rank, len(ROLES), args)) for rank in ROLES]
        for name, process in zip(NAMES, processes, strict=True):
            process.start()
            print(f"{name}: process {process.pid}", flush=True)
        for process in processes:
            process.join()
    sys.exit(int(any(process.exitcode for process in processes)))


if __name__ == "__main__":
    main()

"""Cases that run a compiled Triton kernel's PTX, damaged or not: inputs, launch, reference, verdict."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from .launch import Buffer, Options, PtxModule, without_known_gaps
from .triton_driver import version

LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class CompiledKernel:
    """A Triton kernel compiled for a named target, without a GPU."""

    name: str
    arch: int
    config: dict[str, Any]
    ptx: str
    shared: int
    threads: int


def compile_kernel(
    function: Any,
    signature: dict[str, str],
    config: dict[str, Any],
    arch: int,
    warps: int,
    stages: int,
    aligned: set[str],
) -> CompiledKernel:
    """aligned: parameters divisible by 16, which is what lets Triton use wide accesses."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = [*signature, *config]
    compiled = triton.compile(
        ASTSource(
            fn=function,
            signature=signature | dict.fromkeys(config, "constexpr"),
            constexprs=config,
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
        ),
        target=GPUTarget("cuda", arch, 32),
        options={"num_warps": warps, "num_stages": stages},
    )
    shared = compiled.metadata.shared
    return CompiledKernel(compiled.metadata.name, arch, config, compiled.asm["ptx"], shared, 32 * warps)


@functools.cache
def attention_kernel(arch: int, head_dim: int, block_m: int, warps: int, heads: int = 2) -> CompiledKernel:
    from .kernels import triton_attention as source

    tensors = dict.fromkeys(["Q", "K", "V", "OUT"], "*bf16") | {"LSE": "*fp32"}
    tensors |= dict.fromkeys(["BLOCK_TABLE", "CU_SEQLENS_Q", "SEQLENS_K"], "*i32")
    strides = ["stride_q_token", "stride_q_head", "stride_page", "stride_page_token", "stride_page_head"]
    signature = tensors | {"scale_log2e": "fp32"} | dict.fromkeys([*strides, "stride_block_table"], "i32")
    config = {"HEADS": heads, "KV_HEADS": 1, "HEAD_DIM": head_dim, "PAGE": 16}
    config |= {"BLOCK_M": block_m, "BLOCK_N": 64, "CAUSAL": True}
    return compile_kernel(source.paged_attention, signature, config, arch, warps, 2, {*tensors, *strides})


@functools.cache
def tma_gemm_kernel() -> CompiledKernel:
    from .kernels import triton_attention as source

    signature = dict.fromkeys("ABC", "*bf16") | dict.fromkeys("MNK", "i32")
    config = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
    return compile_kernel(source.tma_gemm, signature, config, 90, 8, 3, set(signature))


def deviation(actual: torch.Tensor, expected: torch.Tensor) -> float:
    worst = (actual - expected).abs().max().item()
    return math.inf if math.isnan(worst) else worst


class AttentionCase:
    """Causal paged attention over (query tokens, KV tokens) of each sequence; (1, n) is a decode step."""

    def __init__(self, kernel: CompiledKernel, lengths: tuple[tuple[int, int], ...], seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.kernel, self.lengths = kernel, lengths
        c = kernel.config
        self.heads, self.kv_heads, self.dim, self.page = (c[name] for name in ("HEADS", "KV_HEADS", "HEAD_DIM", "PAGE"))
        counts = [-(-kv // self.page) for _, kv in lengths]
        pages, tokens = sum(counts) + 3, sum(q for q, _ in lengths)
        # The very last page is in use, so that a read past the end of the cache shows.
        free = torch.cat([torch.tensor([pages - 1]), torch.randperm(pages - 1, generator=generator)]).int()
        table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        for row, count in zip(table, counts):
            row[:count], free = free[:count], free[count:]
        random = functools.partial(torch.randn, generator=generator)
        self.inputs = {
            "Q": random(tokens, self.heads, self.dim).bfloat16(),
            "K": random(pages, self.page, self.kv_heads, self.dim).bfloat16(),
            "V": random(pages, self.page, self.kv_heads, self.dim).bfloat16(),
            "BLOCK_TABLE": table,
            "CU_SEQLENS_Q": torch.tensor([0] + [q for q, _ in lengths]).cumsum(0).int(),
            "SEQLENS_K": torch.tensor([kv for _, kv in lengths], dtype=torch.int32),
        }
        self.out = torch.empty(tokens, self.heads, self.dim, dtype=torch.bfloat16)
        self.lse = torch.empty(tokens, self.heads)
        self.expected_out, self.expected_lse = self._reference()

    def _reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """fp32 attention over gathered pages: (out, base-2 log-sum-exp)."""
        outs, lses = [], []
        starts = self.inputs["CU_SEQLENS_Q"].tolist()
        for s, (q_len, kv_len) in enumerate(self.lengths):
            rows = self.inputs["BLOCK_TABLE"][s].long()
            q = self.inputs["Q"][starts[s] : starts[s + 1]].float().transpose(0, 1)
            k, v = (self.inputs[name][rows].flatten(0, 1)[:kv_len].float().transpose(0, 1) for name in "KV")
            k, v = (x.repeat_interleave(self.heads // self.kv_heads, 0) for x in (k, v))
            scores = q @ k.transpose(1, 2) / math.sqrt(self.dim)
            last = torch.arange(q_len)[:, None] + kv_len - q_len
            scores = scores.masked_fill(torch.arange(kv_len)[None] > last, -math.inf)
            outs.append((torch.softmax(scores, -1) @ v).transpose(0, 1))
            lses.append(torch.logsumexp(scores, -1).T * LOG2E)
        return torch.cat(outs), torch.cat(lses)

    def launch(self, module: PtxModule, options: Options, hidden: dict[str, int] | None = None):
        """hidden: bytes to hide from the end of an input, by name."""
        self.out.fill_(math.nan)
        self.lse.fill_(math.nan)
        per_token = self.kv_heads * self.dim
        strides = [self.heads * self.dim, self.dim, self.page * per_token, per_token, self.dim]
        tensors = self.inputs
        values = [tensors["Q"], tensors["K"], tensors["V"], self.out, self.lse, tensors["BLOCK_TABLE"]]
        values += [tensors["CU_SEQLENS_Q"], tensors["SEQLENS_K"], LOG2E / math.sqrt(self.dim)]
        values += [*strides, tensors["BLOCK_TABLE"].shape[1]]
        buffers = []
        for name, tensor in tensors.items():
            whole = Buffer.of(tensor, name, writable=False)
            buffers.append(Buffer(whole.address, whole.size - (hidden or {}).get(name, 0), name, writable=False))
        buffers += [Buffer.of(self.out, "OUT"), Buffer.of(self.lse, "LSE")]
        blocks = -(-max(q for q, _ in self.lengths) // self.kernel.config["BLOCK_M"])
        grid = (blocks, self.heads, len(self.lengths))
        fenced = without_known_gaps(options, version()).strict_cp_async_proxy
        return module.launch(
            self.kernel.name,
            grid,
            self.kernel.threads,
            values,
            buffers,
            self.kernel.shared,
            options=replace(options, strict_cp_async_proxy=fenced),
        )

    def is_right(self) -> bool:
        return deviation(self.out.float(), self.expected_out) <= 0.02 and deviation(self.lse, self.expected_lse) <= 1e-4

    def run(self, module: PtxModule, options: Options) -> set[str]:
        """Kinds found; "wrong numbers" if that is all that shows."""
        result = self.launch(module, options)
        return result.kinds or (set() if self.is_right() else {"wrong numbers"})


class GemmCase:
    """C[M, N] = A[M, K] @ B[N, K]^T in bf16 with tensor maps that the kernel builds itself."""

    def __init__(self, kernel: CompiledKernel, shape: tuple[int, int, int], seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.kernel, self.shape = kernel, shape
        m, n, k = shape
        self.grid = (-(-m // kernel.config["BLOCK_M"]), -(-n // kernel.config["BLOCK_N"]), 1)
        self.a = torch.randn(m, k, generator=generator).bfloat16()
        self.b = torch.randn(n, k, generator=generator).bfloat16()
        self.c = torch.empty(m, n, dtype=torch.bfloat16)
        scratch = torch.zeros(3 * 128 * self.grid[0] * self.grid[1] + 128, dtype=torch.uint8)
        self.scratch = scratch[-scratch.data_ptr() % 128 :]
        self.expected = self.a.float() @ self.b.float().T

    def run(self, module: PtxModule, options: Options) -> set[str]:
        self.c.fill_(math.nan)
        self.scratch.zero_()
        buffers = [Buffer.of(self.a, "A", writable=False), Buffer.of(self.b, "B", writable=False)]
        buffers += [Buffer.of(self.c, "C"), Buffer.of(self.scratch, "scratch")]
        values = [self.a, self.b, self.c, *self.shape, self.scratch]
        result = module.launch(
            self.kernel.name, self.grid, self.kernel.threads, values, buffers, self.kernel.shared, options=options
        )
        right = deviation(self.c.float(), self.expected) <= 0.008 * self.expected.abs().max().item()
        return result.kinds or (set() if right else {"wrong numbers"})

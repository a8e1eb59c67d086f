"""The memory-bound CUDA kernels move what they must and hardly more, in wide accesses; every barrier is needed.

Useful bytes: each input and output once, cos and sin once a token. Counted bytes are those of all lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass

import pytest
import torch
from plan_batches import SPECS, Lengths

import chunkattn
from chunkattn.args import PlanArgs
from chunkattn.planning import work

from . import cuda_backend, cuda_runtime, mutation
from .launch import Options, PtxModule
from .session import Session, emulated

cuda_backend.skip_unless_available()

from chunkattn.backends.cuda import backend  # noqa: E402

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
ALLOWANCE = 1.05
SECTOR_ALLOWANCE = 1.10  # a row's lse or scale, 4 bytes, counts as a sector of 32; neighbouring rows share it in L1


@dataclass(frozen=True)
class Moved:
    """One launch's traffic against what its operator cannot do without."""

    read: int
    written: int
    useful_read: int
    useful_written: int
    sectors: int

    def check(self) -> None:
        assert self.useful_read <= self.read <= ALLOWANCE * self.useful_read
        assert self.useful_written == self.written
        assert self.sectors <= SECTOR_ALLOWANCE * (self.read + self.written) / 32


def moved(session: Session, useful_read: int, useful_written: int) -> Moved:
    (launch,) = session.launches
    counters = launch.counters
    return Moved(
        counters["global_bytes_read"],
        counters["global_bytes_written"],
        useful_read,
        useful_written,
        counters["global_sectors"],
    )


def size(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass
class Append:
    """A step of 40 tokens of 3 requests, Llama-like heads."""

    tokens: int = 40
    kv_dtype: torch.dtype = BF16
    rope: bool = False
    scale: str = "none"

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        t = self.tokens
        self.k, self.v = torch.randn(2, t, 8, 128, generator=generator).to(BF16)
        self.q = torch.randn(t, 32, 128, generator=generator).to(BF16)
        pool = torch.zeros(8, 16, 8, 128, dtype=torch.uint8 if self.kv_dtype.itemsize == 1 else BF16)
        self.k_cache, self.v_cache = pool.clone().view(self.kv_dtype), pool.clone().view(self.kv_dtype)
        self.batch = (
            torch.tensor([[0, 1, -1], [2, 3, 4], [5, -1, -1]], dtype=torch.int32),
            torch.tensor([0, 20, t - 1, t], dtype=torch.int32),
            torch.tensor([20, t + 1, 9], dtype=torch.int32),
        )
        self.cos, self.sin = torch.randn(2, 64, 64, generator=generator)
        shape = {"none": None, "tensor": (), "head": (8,), "token": (8, 16, 8)}[self.scale]
        self.k_scale = None if shape is None else torch.ones(shape)
        self.v_scale = None if shape is None else torch.ones(shape)

    def run(self) -> None:
        chunkattn.append_kv(
            self.k,
            self.v,
            self.k_cache,
            self.v_cache,
            *self.batch,
            k_scale=self.k_scale,
            v_scale=self.v_scale,
            rope=chunkattn.Rope(self.cos, self.sin) if self.rope else None,
            q=self.q if self.rope else None,
            backend="cuda",
        )

    def useful(self) -> tuple[int, int]:
        rows = 2 * self.tokens * 8 * 128
        read, written = 2 * rows, self.kv_dtype.itemsize * rows
        if self.rope:
            read += size(self.q) + self.tokens * 64 * 2 * 4
            written += size(self.q)
        if self.scale == "token":
            written += 2 * self.tokens * 8 * 4
        return read, written


APPENDS = [
    Append(),
    Append(rope=True),
    Append(kv_dtype=FP8, rope=True),
    Append(kv_dtype=torch.int8, scale="token"),
    Append(kv_dtype=FP8, scale="head"),
]


@pytest.mark.parametrize("case", APPENDS, ids=str)
@pytest.mark.parametrize("arch", [80, 90])
def test_append_kv_moves_each_row_once(case: Append, arch: int) -> None:
    with emulated(arch, Options(count_memory=True)) as session:
        case.run()
    moved(session, *case.useful()).check()


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize("arch", [80, 90])
def test_merge_states_reads_both_states_once(dtype: torch.dtype, arch: int) -> None:
    a, b, out = (torch.randn(40, 8, 128).to(dtype) for _ in range(3))
    lse_a, lse_b, lse = torch.randn(3, 40, 8)
    with emulated(arch, Options(count_memory=True)) as session:
        chunkattn.merge_states(a, lse_a, b, lse_b, out=out, lse=lse, backend="cuda")
    moved(session, size(a, b, lse_a, lse_b), size(out, lse)).check()


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("arch", [80, 90])
def test_page_moves_copy_each_byte_once(layout: str, arch: int) -> None:
    kv = chunkattn.PagedKV.allocate(12, 16, 8, 128, layout=layout)
    kv.k_cache.normal_()
    pages = torch.tensor([3, 7, 0, 11])
    with emulated(arch, Options(count_memory=True)) as session:
        out = chunkattn.gather_pages(kv.k_cache, pages, backend="cuda")
    moved(session, size(out), size(out)).check()
    assert torch.equal(out, kv.k_cache[pages])


FAR = 2**31 + 64  # elements; the memory between is never touched


def far_apart(count: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """[count, *shape] with more than 2^31 elements from one entry to the next."""
    inner = torch.Size(shape).numel()
    storage = torch.empty((count - 1) * FAR + inner, dtype=dtype)
    strides = torch.empty(shape, device="meta").stride()
    return storage.as_strided((count, *shape), (FAR, *strides))


@pytest.mark.parametrize("arch", [80, 90])
def test_addresses_beyond_32_bits(arch: int) -> None:
    pool, near = far_apart(3, 16, 2, 64, dtype=torch.int8), torch.zeros(3, 16, 2, 64, dtype=torch.int8)
    k = torch.randn(20, 2, 64, generator=torch.Generator().manual_seed(1))
    batch = torch.tensor([[2, 0]]).int(), torch.tensor([0, 20]).int(), torch.tensor([20]).int()
    out_a, out_b = far_apart(2, 3, 64, dtype=BF16), torch.ones(2, 3, 64, dtype=BF16)
    out_a.copy_(3 * out_b)
    with emulated(arch):
        chunkattn.append_kv(k, k, pool, near, *batch, backend="cuda")
        block = chunkattn.gather_pages(pool, torch.tensor([2, 0]), backend="cuda")
        chunkattn.copy_pages(pool, torch.tensor([2]), torch.tensor([1]), backend="cuda")
        chunkattn.scatter_pages(block[:1], pool, torch.tensor([0]), backend="cuda")
        zero = torch.zeros(2, 3)
        merged, _ = chunkattn.merge_states(out_a, zero, out_b, zero, out=out_a, backend="cuda")
    assert near.count_nonzero() > 0
    assert torch.equal(block[0], near[2])
    assert torch.equal(block[1, :4], near[0, :4])
    for page in range(3):
        assert torch.equal(pool[page], near[2])
    assert torch.equal(merged, 2 * out_b)


def plan_is_right() -> bool:
    """Several rounds of the CTA with all kinds of requests."""
    lengths = Lengths.of([1, 0, 70, 5] * 160, [900, 3, 70, 4000] * 160)
    words = torch.zeros(work.plan_words(640), dtype=torch.int64)
    facts = dict.fromkeys(PlanArgs._fields, 0) | {"dtype": BF16, "layout": "NHD", "words": words}
    facts |= {"cu_seqlens_q": torch.tensor(lengths.cu_seqlens_q).int(), "seq_lens": torch.tensor(lengths.kv_lens).int()}
    backend.launch_plan(PlanArgs(**facts), tuple(int(value) for value in astuple(SPECS[6])))
    return words.tolist() == work.make_plan(SPECS[6], lengths.cu_seqlens_q, lengths.kv_lens)


def append_is_right() -> bool:
    got, right = Append(kv_dtype=FP8, rope=True, scale="token"), Append(kv_dtype=FP8, rope=True, scale="token")
    got.run()
    chunkattn.append_kv(
        right.k,
        right.v,
        right.k_cache,
        right.v_cache,
        *right.batch,
        k_scale=right.k_scale,
        v_scale=right.v_scale,
        rope=chunkattn.Rope(right.cos, right.sin),
        q=right.q,
        backend="cpu",
    )
    written = right.v_cache.view(torch.uint8)
    return torch.equal(got.v_cache.view(torch.uint8), written) and torch.allclose(got.q, right.q, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("is_right", [plan_is_right, append_is_right])
def test_every_barrier_is_missed_if_it_is_gone(
    is_right: Callable[[], bool], arch: int, monkeypatch: pytest.MonkeyPatch, record_property: Callable[..., None]
) -> None:
    seen: list[tuple[PtxModule, str]] = []
    with emulated(arch) as session:
        monkeypatch.setattr(session, "launch", lambda module, kernel, *rest: seen.append((module, kernel)))
        is_right()
    ((module, kernel),) = seen

    def run(damaged: PtxModule, options: Options) -> set[str]:
        monkeypatch.setattr(cuda_runtime.CudaLaunches, "module", lambda self, number: damaged)
        try:
            with emulated(arch, options, strict=False) as session:
                wrong = not is_right()
        except RuntimeError:  # the launch says that it failed; what was found stands in the session
            wrong = True
        found = {finding.kind for launch in session.launches for finding in launch.all_findings}
        return found | ({"wrong numbers"} if wrong else set())

    score = mutation.score(is_right.__name__, kernel, module.ptx, run)
    record_property("mutation_score", len(score.caught) / score.sites)
    assert score.sites >= 2
    assert not score.survived, score.describe()

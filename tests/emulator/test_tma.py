"""Tensor copies of every rank and swizzle, at and beyond the edges; stores, reductions, multicast."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from . import native, snippet
from .launch import Buffer, Options, PtxModule

pytestmark = pytest.mark.skipif(native.unavailable_reason() is not None, reason=str(native.unavailable_reason()))

ELEMENT = {torch.float32: 7, torch.bfloat16: 9, torch.float16: 6, torch.uint8: 0, torch.int32: 3}
PARAMETERS = ", .param .align 64 .b8 p_map[128], .param .align 4 .b8 p_at[20]"
TILE_BYTES = 8192
MODULE = f".shared .align 1024 .b8 tile[{TILE_BYTES}]; .shared .align 8 .b8 full[8];"
SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}


def tensor_map(tensor: torch.Tensor, box: list[int], swizzle: int = 0, fill_nan: bool = False) -> bytes:
    """The map of a contiguous tensor; `box` is outermost first, like a shape."""
    size = tensor.element_size()
    return native.module().encode_tensor_map(
        ELEMENT[tensor.dtype],
        tensor.data_ptr(),
        list(tensor.shape[::-1]),
        [stride * size for stride in tensor.stride()[-2::-1]],
        box[::-1],
        swizzle,
        fill_nan,
    )


def coordinate_operands(rank: int) -> tuple[str, str]:
    loads = " ".join(f"ld.param.u32 %r{20 + k}, [p_at+{4 * k}];" for k in range(rank))
    return loads, "{" + ", ".join(f"%r{20 + k}" for k in range(rank)) + "}"


def load_body(rank: int, tile_bytes: int) -> str:
    loads, coordinates = coordinate_operands(rank)
    return f"""
      {loads}
      mov.b64 %rd1, p_map; cvta.param.u64 %rd1, %rd1;
      mov.u32 %r1, tile; mov.u32 %r2, full; setp.eq.u32 %p1, %thread, 0;
      @%p1 mbarrier.init.shared.b64 [%r2], 1;
      fence.mbarrier_init.release.cluster;
      bar.sync 0;
      @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], {tile_bytes};
      @%p1 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r1], [%rd1, {coordinates}], [%r2];
      L: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra L;
      mov.u32 %r3, %thread;
      COPY: setp.ge.u32 %p3, %r3, {tile_bytes // 4}; @%p3 bra END;
      shl.b32 %r4, %r3, 2; add.u32 %r5, %r1, %r4; ld.shared.u32 %r6, [%r5];
      cvt.u64.u32 %rd2, %r4; add.s64 %rd2, %out, %rd2; st.global.u32 [%rd2], %r6;
      add.u32 %r3, %r3, 64; bra COPY;
      END:
    """


def store_body(rank: int, tile_bytes: int, instruction: str) -> str:
    loads, coordinates = coordinate_operands(rank)
    return f"""
      {loads}
      mov.b64 %rd1, p_map; cvta.param.u64 %rd1, %rd1;
      mov.u32 %r1, tile; setp.eq.u32 %p1, %thread, 0; mov.u32 %r3, %thread;
      COPY: setp.ge.u32 %p3, %r3, {tile_bytes // 4}; @%p3 bra DONE;
      shl.b32 %r4, %r3, 2; add.u32 %r5, %r1, %r4;
      cvt.u64.u32 %rd2, %r4; add.s64 %rd2, %in, %rd2; ld.global.u32 %r6, [%rd2]; st.shared.u32 [%r5], %r6;
      add.u32 %r3, %r3, 64; bra COPY;
      DONE: fence.proxy.async.shared::cta; bar.sync 0;
      @%p1 {instruction.format(rank=rank)} [%rd1, {coordinates}], [%r1];
      @%p1 cp.async.bulk.commit_group;
      @%p1 cp.async.bulk.wait_group 0;
    """


def run(
    body: str, tensor_map_bytes: bytes, at: list[int], buffers: list[Buffer], values: list[torch.Tensor], seed: int
):
    module = PtxModule(snippet.kernel_text(body, MODULE, PARAMETERS))
    coordinates = b"".join(c.to_bytes(4, "little", signed=True) for c in [*at[::-1], *[0] * (5 - len(at))])
    values = [*values, tensor_map_bytes, coordinates]
    return module.launch("snippet", 1, 64, values, buffers, options=Options.for_seed(seed))


def box_of(tensor: torch.Tensor, box: list[int], at: list[int], outside: float) -> torch.Tensor:
    """The tile in row order, with `outside` where it leaves the tensor."""
    result = torch.full(box, outside, dtype=torch.float64)
    for index in itertools.product(*(range(n) for n in box)):
        where = [a + i for a, i in zip(at, index)]
        if all(0 <= w < n for w, n in zip(where, tensor.shape)):
            result[index] = tensor[tuple(where)].double()
    return result.to(tensor.dtype)


def swizzled(data: torch.Tensor, mode: int) -> torch.Tensor:
    """Bytes as they lie in shared memory: 16-byte chunks permuted within 8 rows."""
    chunks = data.contiguous().view(torch.uint8).view(-1, 16)
    address = torch.arange(chunks.shape[0]) * 16
    mask = [0, 0x10, 0x30, 0x70][mode]
    result = torch.empty_like(chunks)
    result[(address ^ ((address >> 3) & mask)) // 16] = chunks
    return result.view(-1)


CASES = [
    # shape, box, coordinates, dtype
    ([40], [16], [0], torch.float32),
    ([40], [16], [32], torch.float32),
    ([20, 36], [8, 16], [16, 28], torch.float32),
    ([20, 64], [8, 64], [-3, -5], torch.bfloat16),
    ([5, 9, 32], [2, 4, 32], [4, 7, 8], torch.float16),
    ([3, 4, 5, 16], [2, 1, 3, 16], [2, 3, -1, 0], torch.int32),
    ([2, 3, 2, 3, 32], [1, 2, 2, 2, 32], [1, 2, 0, -1, 16], torch.uint8),
]


@pytest.mark.parametrize(("shape", "box", "at", "dtype"), CASES, ids=str)
@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_load(shape: list[int], box: list[int], at: list[int], dtype: torch.dtype, swizzle: str) -> None:
    tensor = torch.randint(0, 100, shape).to(dtype)
    row = box[-1] * tensor.element_size()
    if SWIZZLES[swizzle] and row > 16 << SWIZZLES[swizzle]:
        pytest.skip("the box is wider than the swizzle span")
    tile_bytes = math.prod(box) * tensor.element_size()
    out = torch.zeros(tile_bytes // 4, dtype=torch.int32)
    buffers = [Buffer.of(tensor, "tensor", writable=False), Buffer.of(out, "out")]
    descriptor = tensor_map(tensor, box, SWIZZLES[swizzle])
    for seed in range(3):
        run(load_body(len(shape), tile_bytes), descriptor, at, buffers, [out, out], seed).require_clean()
        assert torch.equal(out.view(torch.uint8), swizzled(box_of(tensor, box, at, 0), SWIZZLES[swizzle]))


def test_fill_with_nan() -> None:
    tensor = torch.randn(4, 16)
    out = torch.zeros(8 * 16, dtype=torch.int32)
    descriptor = tensor_map(tensor, [8, 16], fill_nan=True)
    buffers = [Buffer.of(tensor, "tensor"), Buffer.of(out, "out")]
    run(load_body(2, 512), descriptor, [0, 8], buffers, [out, out], 0).require_clean()
    got = out.view(torch.float32).view(8, 16)
    assert torch.equal(got[:4, :8], tensor[:, 8:])
    assert got[4:].isnan().all()
    assert got[:4, 8:].isnan().all()


STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
REDUCE = "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.tile.bulk_group"


@pytest.mark.parametrize(("instruction", "adds"), [(STORE, False), (REDUCE, True)], ids=["store", "reduce"])
@pytest.mark.parametrize(("shape", "box", "at", "dtype"), CASES[:6], ids=str)
def test_store(
    shape: list[int], box: list[int], at: list[int], dtype: torch.dtype, instruction: str, adds: bool
) -> None:
    tile = torch.randint(0, 50, box).to(dtype)
    tile_bytes = tile.numel() * tile.element_size()
    for seed in range(3):
        tensor = torch.randint(0, 50, shape).to(dtype)
        expected = tensor.clone()
        for index in itertools.product(*(range(n) for n in box)):
            where = tuple(a + i for a, i in zip(at, index))
            if all(0 <= w < n for w, n in zip(where, shape)):
                expected[where] = (expected[where] if adds else 0) + tile[index]
        buffers = [Buffer.of(tensor, "tensor"), Buffer.of(tile, "tile", writable=False)]
        body = store_body(len(shape), tile_bytes, instruction)
        run(body, tensor_map(tensor, box), at, buffers, [tile, tile], seed).require_clean()
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"box": [8, 300]}, "256"),
        ({"box": [8, 2]}, "16 bytes"),
        ({"swizzle": 1, "box": [8, 32]}, "swizzle span"),
        ({"columns": 33}, "multiples of 16"),
    ],
    ids=["box", "inner", "swizzle", "stride"],
)
def test_maps_that_the_hardware_refuses(change: dict, message: str) -> None:
    tensor = torch.zeros(8, change.get("columns", 64))
    with pytest.raises(ValueError, match=message):
        tensor_map(tensor, change.get("box", [8, 16]), change.get("swizzle", 0))


MULTICAST = """
  mov.b64 %rd1, p_map; cvta.param.u64 %rd1, %rd1;
  mov.u32 %r1, tile; mov.u32 %r2, full; setp.eq.u32 %p1, %thread, 0; mov.u32 %r9, %cluster_ctarank;
  @%p1 mbarrier.init.shared.b64 [%r2], 1;
  fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 512;
  mov.b16 %h1, 3; shl.b32 %r10, %r9, 2; shl.b32 %r11, %r9, 8; add.u32 %r12, %r1, %r11; mov.u32 %r13, 0;
  @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
    [%r12], [%rd1, {{%r13, %r10}}], [%r2], %h1;
  L: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra L;
  shl.b32 %r4, %thread, 3; add.u32 %r5, %r1, %r4; ld.shared.v2.u32 {{%r6, %r7}}, [%r5];
  mul.wide.u32 %rd2, %r9, 512; cvt.u64.u32 %rd3, %r4; add.s64 %rd2, %rd2, %rd3; add.s64 %rd2, %out, %rd2;
  st.global.v2.u32 [%rd2], {{%r6, %r7}};
  {end}
"""


@pytest.mark.parametrize("seed", range(4))
def test_multicast(seed: int) -> None:
    """Each CTA of a pair loads half of the tile for both."""
    tensor = torch.randn(8, 16)
    out = torch.zeros(2, 8, 16)
    module = PtxModule(snippet.kernel_text(MULTICAST.format(end=""), MODULE, PARAMETERS))
    buffers = [Buffer.of(tensor, "tensor", writable=False), Buffer.of(out, "out")]
    values = [tensor, out, tensor_map(tensor, [4, 16]), bytes(20)]
    result = module.launch("snippet", 2, 64, values, buffers, cluster=(2, 1, 1), options=Options.for_seed(seed))
    # A CTA may end while the other one still multicasts into it: only waiting for both halves prevents that, which
    # the expected bytes do here.
    result.require_clean()
    assert torch.equal(out[0], tensor)
    assert torch.equal(out[1], tensor)


def test_bodies_are_accepted_by_ptxas() -> None:
    if snippet.ptxas_path() is None:
        pytest.skip("ptxas is not installed")
    bodies = [load_body(rank, 512) for rank in range(1, 6)]
    bodies += [store_body(2, 512, STORE), store_body(3, 512, REDUCE), MULTICAST.format(end="")]
    for body in bodies:
        assert snippet.ptxas_error(snippet.kernel_text(body, MODULE, PARAMETERS)) is None

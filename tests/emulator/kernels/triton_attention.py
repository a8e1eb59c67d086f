"""Example Triton kernels for the emulator: paged varlen attention and a TMA GEMM."""

import triton
import triton.language as tl


@triton.jit
def paged_attention(
    Q,
    K,
    V,
    OUT,
    LSE,
    BLOCK_TABLE,
    CU_SEQLENS_Q,
    SEQLENS_K,
    scale_log2e,
    stride_q_token,
    stride_q_head,
    stride_page,
    stride_page_token,
    stride_page_head,
    stride_block_table,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One CTA: BLOCK_M query tokens of one head of one sequence; causal mask aligned to the end.

    LSE is in base 2.
    """
    block = tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    first_q = tl.load(CU_SEQLENS_Q + sequence)
    len_q = tl.load(CU_SEQLENS_Q + sequence + 1) - first_q
    len_k = tl.load(SEQLENS_K + sequence)
    if block * BLOCK_M >= len_q:
        return
    kv_head = head // (HEADS // KV_HEADS)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    row_valid = rows < len_q
    q_offset = (first_q + rows)[:, None].to(tl.int64) * stride_q_token + head * stride_q_head
    q = tl.load(Q + q_offset + dims[None, :], mask=row_valid[:, None], other=0.0)

    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    shift = len_k - len_q
    end = len_k
    if CAUSAL:
        end = tl.minimum(len_k, shift + (block + 1) * BLOCK_M)
    for start in tl.range(0, end, BLOCK_N):
        position = start + columns
        valid = position < len_k
        page = tl.load(BLOCK_TABLE + sequence * stride_block_table + position // PAGE, mask=valid, other=0).to(tl.int64)
        kv_offset = page * stride_page + (position % PAGE) * stride_page_token + kv_head * stride_page_head
        k = tl.load(K + kv_offset[None, :] + dims[:, None], mask=valid[None, :], other=0.0)
        s = tl.dot(q, k) * scale_log2e
        keep = valid[None, :] & row_valid[:, None]
        if CAUSAL:
            keep = keep & (position[None, :] <= (rows + shift)[:, None])
        s = tl.where(keep, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1))
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(s - safe_max[:, None])
        alpha = tl.exp2(row_max - safe_max)
        row_sum = row_sum * alpha + tl.sum(p, 1)
        v = tl.load(V + kv_offset[:, None] + dims[None, :], mask=valid[:, None], other=0.0)
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc)
        row_max = new_max

    safe_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    acc = acc / safe_sum[:, None]
    tl.store(OUT + q_offset + dims[None, :], acc.to(OUT.dtype.element_ty), mask=row_valid[:, None])
    tl.store(LSE + (first_q + rows) * HEADS + head, row_max + tl.log2(safe_sum), mask=row_valid)


@triton.jit
def tma_gemm(A, B, C, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """C[M, N] = A[M, K] @ B[N, K]^T in bf16, with tensor maps built on the device."""
    a_map = tl.make_tensor_descriptor(A, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    b_map = tl.make_tensor_descriptor(B, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
    c_map = tl.make_tensor_descriptor(C, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    block_m = tl.program_id(0)
    block_n = tl.program_id(1)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        a = a_map.load([block_m * BLOCK_M, k])
        b = b_map.load([block_n * BLOCK_N, k])
        acc = tl.dot(a, b.T, acc)
    c_map.store([block_m * BLOCK_M, block_n * BLOCK_N], acc.to(tl.bfloat16))

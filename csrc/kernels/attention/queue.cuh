// The items of a step, and who takes which; rows that are nobody's item.
#pragma once
#include "chunkattn/epilogue/output.cuh"
#include "chunkattn/ptx/atomic.cuh"
#include "chunkattn/seq/task.cuh"
#include "kernels/attention/params.cuh"

namespace chunkattn {

// Next item of a queue; false if it is empty. One thread.
__device__ inline bool take(const KernelParams& p, bool decode, Task* task) {
  const Plan plan(p.plan);
  const BatchView& batch = p.attention.batch;
  const int64_t total = decode ? plan.header().decode_total : plan.header().prefill_total;
  const int32_t number = ptx::add_relaxed(p.queue_heads + (decode ? 0 : 1), 1);
  if (number >= total) return false;
  *task = Task(decode ? plan.decode_item(number, batch.cu_seqlens_q, batch.seq_lens)
                      : plan.prefill_item(number, batch.cu_seqlens_q, batch.seq_lens),
               batch);
  return true;
}

// As in chunkattn/planning/work.py: whether a worker that is free takes a decode item, the class of which the larger
// share is left. Decodes wait for memory, prefills for arithmetic, so both must last until the end. A quarter of the
// workers is added to the prefill items that are left: those in progress, on the average half done by half of them.
__device__ inline bool takes_decode(int64_t decode_left, int64_t decode_total, int64_t prefill_left,
                                    int64_t prefill_total, int64_t num_workers) {
  if (prefill_left <= 0 || decode_left <= 0) return decode_left > 0;
  return 4 * decode_left * prefill_total >= (4 * prefill_left + num_workers) * decode_total;
}

// Next item, of the class of which the larger share is left; false if there is none. One thread.
__device__ inline bool take_next(const KernelParams& p, Task* task) {
  const PlanHeader& header = Plan(p.plan).header();
  while (true) {
    const int64_t decode_left = header.decode_total - ptx::add_relaxed(p.queue_heads, 0);
    const int64_t prefill_left = header.prefill_total - ptx::add_relaxed(p.queue_heads + 1, 0);
    if (decode_left <= 0 && prefill_left <= 0) return false;
    // Others may have taken the last one meanwhile.
    if (take(p, takes_decode(decode_left, header.decode_total, prefill_left, header.prefill_total, gridDim.x), task))
      return true;
  }
}

// A plan for other facts than this call's would send rows astray: stop instead.
__device__ inline bool plan_fits(const KernelParams& p, const PlanHeader& header) {
  if (header.magic != kPlanMagic || header.num_requests != p.attention.batch.num_requests) return false;
  const int64_t *found = reinterpret_cast<const int64_t*>(&header.spec),
                *wanted = reinterpret_cast<const int64_t*>(&p.spec);
  bool fits = true;
  for (int word = 0; word < kPlanSpecWords; ++word) fits &= found[word] == wanted[word];
  return fits;
}

// Token rows past the last request belong to nobody: out 0, lse -inf. All threads of the grid.
template <DType kType, int kThreads>
__device__ inline void fill_padding(const KernelParams& p) {
  const AttentionParams& a = p.attention;
  const int64_t first = a.batch.cu_seqlens_q[a.batch.num_requests], parts = a.head_dim_v / 4;
  const int64_t count = (a.num_tokens - first) * a.num_q_heads * parts;
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = i / parts, token = first + row / a.num_q_heads;
    const int32_t q_head = static_cast<int32_t>(row % a.num_q_heads), column = static_cast<int32_t>(i % parts) * 4;
    store_four<kType>(a, token, q_head, column, p.out_aligned, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    if (column == 0) store_lse(a, token, q_head, -INFINITY);
  }
}

}  // namespace chunkattn

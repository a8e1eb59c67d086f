// One persistent launch for a whole step: every CTA takes items from two queues until both are empty.
#pragma once
#include "kernels/attention_sm80/finish.cuh"
#include "kernels/attention_sm80/mainloop.cuh"

namespace chunkattn::sm80 {

// Shared by all threads; written by the first one. In shared memory and not in registers, all of which the main loop
// needs.
struct Control {
  Task task;
  int32_t arrivals;
  bool done, decode, other_is_empty;
};

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

// Next item of the CTA's own queue or, once that is empty, of the other one.
__device__ inline void take_next(const KernelParams& p, Control* control) {
  control->done = false;
  if (take(p, control->decode, &control->task)) return;
  control->decode = !control->decode;
  control->done = control->other_is_empty || !take(p, control->decode, &control->task);
  control->other_is_empty = true;
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

// Token rows past the last request belong to nobody: out 0, lse -inf.
template <class Config>
__device__ inline void fill_padding(const KernelParams& p) {
  const AttentionParams& a = p.attention;
  const int64_t first = a.batch.cu_seqlens_q[a.batch.num_requests], parts = a.head_dim_v / 4;
  const int64_t count = (a.num_tokens - first) * a.num_q_heads * parts;
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = i / parts, token = first + row / a.num_q_heads;
    const int32_t q_head = static_cast<int32_t>(row % a.num_q_heads), column = static_cast<int32_t>(i % parts) * 4;
    store_four<Config::kType>(a, token, q_head, column, p.out_aligned, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    if (column == 0) store_lse(a, token, q_head, -INFINITY);
  }
}

// One item. In invariant mode states are joined at absolute multiples of invariant_split keys, whether the item is one
// such segment or walks many, and decodes run in the prefill tile: one order of accumulation for everybody.
template <class Config, class Geometry>
__device__ void run(const KernelParams& p, Task& task, char* shared) {
#pragma unroll 1
  while (true) {
    attend<Config, Geometry>(p, task, segment_end(p, task), shared);
    finish<Config, Geometry>(p, task, shared);
    const int32_t end = segment_end(p, task);
    if (end >= task.kv_end) break;
    __syncthreads();  // all have read the staged state and where the segment was
    ptx::store_shared_if(threadIdx.x == 0, ptx::shared_address(&task.segment_begin), end);
    __syncthreads();
  }
}

template <class Config>
__global__ void __launch_bounds__(kThreads, kCtasPerSm) attention_kernel(const __grid_constant__ KernelParams p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ Control control;
  if (threadIdx.x == 0 && !plan_fits(p, Plan(p.plan).header())) __trap();
  fill_padding<Config>(p);

  // Decodes wait for memory, prefills for tensor cores: some CTAs begin with the one, some with the other, so that both
  // go on beside each other; whoever runs out helps the others.
  if (threadIdx.x == 0) {
    control.decode = static_cast<int32_t>(blockIdx.x) < p.decode_first;
    control.other_is_empty = false;
  }
  while (true) {
    __syncthreads();  // all have read the last task, and shared memory is free
    if (threadIdx.x == 0) take_next(p, &control);
    __syncthreads();
    if (control.done) return;
    Task& task = control.task;
    if (task.is_decode && !p.attention.invariant) {
      run<Config, Geometry<Config, true>>(p, task, shared);
    } else {
      run<Config, Geometry<Config, false>>(p, task, shared);
    }
    if (task.num_splits > 1) merge_if_last<Config>(p, task, &control.arrivals);
  }
}

}  // namespace chunkattn::sm80

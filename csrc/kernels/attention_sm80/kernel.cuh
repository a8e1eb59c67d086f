// One persistent launch for a whole step: every CTA takes items from two queues until both are empty.
#pragma once
#include "kernels/attention/queue.cuh"
#include "kernels/attention_sm80/finish.cuh"
#include "kernels/attention_sm80/mainloop.cuh"

namespace chunkattn::sm80 {

// Shared by all threads; written by the first one. In shared memory and not in registers, all of which the main loop
// needs.
struct Control {
  Task task;
  int32_t item_begin, item_end;  // rows, where the task's are those of a pass
  int32_t arrivals;
  bool done;
};

// The task's rows against all its keys.
template <class Config, class Geometry>
__device__ void run(const KernelParams& p, Task& task, char* shared) {
#pragma unroll 1
  while (true) {
    attend<Config, Geometry>(p, task, segment_end(p, task, task.segment_begin), shared);
    finish<Config, Geometry>(p, task, shared);
    const int32_t end = segment_end(p, task, task.segment_begin);
    if (end >= task.kv_end) break;
    __syncthreads();  // all have read the staged state and where the segment was
    ptx::store_shared_if(threadIdx.x == 0, ptx::shared_address(&task.segment_begin), end);
    __syncthreads();
  }
}

// An item in passes of at most kPrefillRows rows, each against all keys. The task's rows are the pass's meanwhile; the
// merge of splits wants the item's again.
template <class Config>
__device__ void run_in_passes(const KernelParams& p, Control& control, char* shared) {
  Task& task = control.task;
  if (threadIdx.x == 0) control.item_begin = task.row_begin, control.item_end = task.row_end;
#pragma unroll 1
  while (true) {
    if (threadIdx.x == 0) task.row_end = min(task.row_begin + Config::kPrefillRows, control.item_end);
    __syncthreads();
    run<Config, Geometry<Config, false>>(p, task, shared);
    const bool last = task.row_end == control.item_end;
    __syncthreads();  // all have read the staged state and the pass
    if (last) break;
    if (threadIdx.x == 0) task.row_begin = task.row_end, task.segment_begin = task.kv_begin;
  }
  if (threadIdx.x == 0) task.row_begin = control.item_begin;
}

// In invariant mode decodes run in the prefill tile: one order of accumulation for everybody.
template <class Config>
__global__ void __launch_bounds__(kThreads, kCtasPerSm) attention_kernel(const __grid_constant__ KernelParams p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ Control control;
  if (threadIdx.x == 0 && !plan_fits(p, Plan(p.plan).header())) __trap();
  fill_padding<Config::kType, kThreads>(p);
  while (true) {
    __syncthreads();  // all have read the last task, and shared memory is free
    if (threadIdx.x == 0) control.done = !take_next(p, &control.task);
    __syncthreads();
    if (control.done) return;
    Task& task = control.task;
    if (task.is_decode && !p.attention.invariant) {
      run<Config, Geometry<Config, true>>(p, task, shared);
    } else if constexpr (Config::kPrefillRows < Config::kItemRows) {
      run_in_passes<Config>(p, control, shared);
    } else {
      run<Config, Geometry<Config, false>>(p, task, shared);
    }
    if (task.num_splits > 1) merge_if_last<Config>(p, task, &control.arrivals);
  }
}

}  // namespace chunkattn::sm80

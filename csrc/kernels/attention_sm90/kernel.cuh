// One persistent launch for a whole step: every CTA takes items from two queues until both are empty.
#pragma once
#include "chunkattn/ptx/warpgroup.cuh"
#include "kernels/attention_sm90/consumer.cuh"
#include "kernels/attention_sm90/producer.cuh"

namespace chunkattn::sm90 {

template <class Config>
__global__ void __launch_bounds__(kThreads, 1)
    attention_kernel(const __grid_constant__ KernelParams p, const __grid_constant__ TensorMaps maps) {
  extern __shared__ __align__(1024) char memory[];
  SharedMemory<Config>& shared = *reinterpret_cast<SharedMemory<Config>*>(memory);
  if (threadIdx.x == 0) {
    if (!plan_fits(p, Plan(p.plan).header())) __trap();
    shared.init();
  }
  fill_padding<Config::kType, kThreads>(p);
  __syncthreads();
  if (threadIdx.x < kProducers) {
    ptx::shrink_registers<kProducerRegisters>();
    Producer<Config>(p, maps, shared).run();
  } else {
    ptx::grow_registers<kConsumerRegisters>();
    Consumer<Config>(p, maps, shared).run();
  }
}

}  // namespace chunkattn::sm90

#include "kernels/library.h"
#include "kernels/plan/kernel.cuh"

CHUNKATTN_EXPORT int32_t chunkattn_plan(const chunkattn::PlanParams* p, const chunkattn::LaunchContext* context) {
  using namespace chunkattn;
  planning::plan_kernel<<<1, planning::kThreads, 0, static_cast<cudaStream_t>(context->stream)>>>(*p);
  return cudaGetLastError();
}

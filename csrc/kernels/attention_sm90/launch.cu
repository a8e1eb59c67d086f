#include "kernels/attention/host_params.h"
#include "kernels/attention_sm90/kernel.cuh"
#include "kernels/library.h"

namespace chunkattn::sm90 {
namespace {

using Variant = Config<static_cast<DType>(CHUNKATTN_DTYPE), static_cast<DType>(CHUNKATTN_KV_DTYPE), CHUNKATTN_HEAD_DIM,
                       CHUNKATTN_HEAD_DIM_V>;
constexpr int kBytes = sizeof(SharedMemory<Variant>);
static_assert(kBytes <= kSharedPerCta, "a CTA fits an SM");
static_assert(CHUNKATTN_TILE_ROWS == Variant::kRows, "the planner cuts rows into the kernel's tiles");
static_assert(CHUNKATTN_DECODE_ROWS == Variant::kDecodeRows, "the planner's decode class fits the decode tile");
static_assert(CHUNKATTN_KV_TILE % Variant::kBlock == 0, "splits begin where blocks of keys begin");

}  // namespace
}  // namespace chunkattn::sm90

CHUNKATTN_EXPORT int32_t chunkattn_attention_sm90(const chunkattn::AttentionParams* p,
                                                  const chunkattn::PlannedStep* step,
                                                  const chunkattn::LaunchContext* context) {
  using namespace chunkattn;
  using namespace chunkattn::sm90;
  // One CTA does the work of all the planner's workers of an SM.
  const int64_t ctas = ceil_div(step->spec.num_workers, CHUNKATTN_CTAS_PER_SM);
  return launch_attention(attention_kernel<Variant>, {ctas, kThreads, kBytes}, *p, *step, *context,
                          Variant::kWidens ? TensorMaps{} : tensor_maps(*p, Variant::kBlock));
}

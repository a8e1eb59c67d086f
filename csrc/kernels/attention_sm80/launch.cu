#include "kernels/attention/host_params.h"
#include "kernels/attention_sm80/kernel.cuh"
#include "kernels/library.h"

namespace chunkattn::sm80 {
namespace {

using Variant = Config<static_cast<DType>(CHUNKATTN_DTYPE), static_cast<DType>(CHUNKATTN_KV_DTYPE), CHUNKATTN_HEAD_DIM,
                       CHUNKATTN_HEAD_DIM_V>;
static_assert(CHUNKATTN_TILE_ROWS == Variant::kItemRows, "the planner cuts rows into the kernel's tiles");
static_assert(CHUNKATTN_DECODE_ROWS == Variant::kDecodeRows, "the planner's decode class fits the decode tile");
static_assert(CHUNKATTN_CTAS_PER_SM == kCtasPerSm, "the planner's workers are the kernel's CTAs");
static_assert(CHUNKATTN_KV_TILE % Variant::kPrefillBlock == 0 && CHUNKATTN_KV_TILE % Variant::kDecodeBlock == 0,
              "splits begin where blocks of keys begin");

}  // namespace
}  // namespace chunkattn::sm80

CHUNKATTN_EXPORT int32_t chunkattn_attention_sm80(const chunkattn::AttentionParams* p,
                                                  const chunkattn::PlannedStep* step,
                                                  const chunkattn::LaunchContext* context) {
  using namespace chunkattn;
  using namespace chunkattn::sm80;
  return launch_attention(attention_kernel<Variant>, {step->spec.num_workers, kThreads, kSharedBytes<Variant>}, *p,
                          *step, *context);
}

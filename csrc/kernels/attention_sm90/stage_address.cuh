// Where wgmma and those who wait for it find a stage of K and V.
#pragma once
#include <cstddef>

#include "chunkattn/mma/warpgroup_multiply.cuh"
#include "kernels/attention_sm90/shared.cuh"

namespace chunkattn::sm90 {

// Words to which constants are added. Each is hidden from the compiler, which would put it together anew wherever it is
// used: that was a tenth of the main loop.
template <class Config>
class StageAddress {
 public:
  using Shared = SharedMemory<Config>;

  __device__ StageAddress(const Shared& shared, int place) : offset_(place * sizeof(Handover)) {
    static_assert(sizeof(Handover) * Config::kStages < alignof(Shared), "| adds; ptxas splits a sum up again");
    hide(offset_);
    handovers_ = ptx::shared_address(&shared) | offset_;
    hide(handovers_);
  }

  // mbarriers.
  __device__ uint32_t keys_full() const { return of_keys() + offsetof(Handover, full); }
  __device__ uint32_t keys_empty() const { return of_keys() + offsetof(Handover, empty); }
  __device__ uint32_t values_full() const { return of_values() + offsetof(Handover, full); }
  __device__ uint32_t values_empty() const { return of_values() + offsetof(Handover, empty); }

  // How far the descriptor of a consumer group's queries is from that of the first stage's keys.
  __device__ static uint32_t first_keys_to_queries(bool second_group) {
    // Where k is innermost, wgmma does not ask how far the next column is: queries may have more rows than keys.
    static_assert(Config::ValueTile::kColumnBytes == Config::KeyTile::kColumnBytes,
                  "descriptors differ by addresses alone");
    return offsetof(Shared, queries) / 16 - offsetof(Shared, stages) / 16 + (second_group ? 64 * 128 / 16 : 0);
  }
  // Makes the descriptors, right before wgmma: ptxas adds to one in a single instruction where it sees it made in the
  // same stretch of code, and in three elsewhere. So the queries', always the same, is reached by way of the keys'.
  __device__ void describe(const Shared& shared, uint32_t first_keys_to_queries) {
    constexpr uint32_t kStep = sizeof(StageTiles<Config>) / 16 / sizeof(Handover);
    static_assert(kStep * 16 * sizeof(Handover) == sizeof(StageTiles<Config>), "one offset leads to both");
    const uint32_t start = lower_descriptor<typename Config::KeyTile>(ptx::shared_address(&shared));
    keys_ = start + offsetof(Shared, stages) / 16 + offset_ * kStep;
    hide(keys_);
    queries_ = keys_ - offset_ * kStep + first_keys_to_queries;
  }
  // Their lower words, once they are made.
  __device__ uint32_t queries() const { return queries_; }
  __device__ uint32_t keys() const { return keys_; }
  __device__ uint32_t values() const { return keys_ + offsetof(StageTiles<Config>, values) / 16; }

 private:
  __device__ static void hide(uint32_t& word) { asm volatile("" : "+r"(word)); }
  __device__ uint32_t of_keys() const { return handovers_ + offsetof(Shared, of_keys); }
  __device__ uint32_t of_values() const { return handovers_ + offsetof(Shared, of_values); }

  uint32_t offset_;     // from the first stage's handovers to this one's
  uint32_t handovers_;  // address of shared memory + offset_
  uint32_t keys_, queries_;
};

}  // namespace chunkattn::sm90

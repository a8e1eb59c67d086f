// Shared memory of a CTA, and the barriers by which producers and consumers hand its tiles to each other.
#pragma once
#include "chunkattn/ptx/mbarrier.cuh"
#include "chunkattn/ptx/tensor_copy.cuh"
#include "kernels/attention_sm90/config.h"

namespace chunkattn::sm90 {

// An item that has been taken; `done`: there was none.
struct Entry {
  Task task;
  bool done;
};

// A place that is filled and emptied in turn.
struct Handover {
  uint64_t full, empty;  // mbarriers

  __device__ void init(int fillers, int emptiers) {
    ptx::mbarrier_init(ptx::shared_address(&full), fillers);
    ptx::mbarrier_init(ptx::shared_address(&empty), emptiers);
  }
};

// What 8-bit caches need: tiles on their way, and scales of what is in the tiles of queries, K and V.
template <class Config, bool kWidens = Config::kWidens>
struct ByteMemory {
  alignas(128) char tiles[Config::kByteTiles][Config::kByteTile];
  float tile_scales[Config::kByteTiles][Config::kBlock];
  float query_scales[Config::kRows], key_scales[Config::kStages][Config::kBlock],
      value_scales[Config::kStages][Config::kBlock];
};
template <class Config>
struct ByteMemory<Config, false> {};

// Room for the states that decodes leave.
template <class Config, bool kStateInStage = Config::kStateInStage>
struct StateMemory {};
template <class Config>
struct StateMemory<Config, false> {
  alignas(16) float staged[Config::kStagedRows * Config::kHeadDimV];
};

template <class Config>
struct StageTiles {
  char keys[Config::KeyTile::kBytes], values[Config::ValueTile::kBytes];
};

template <class Config>
struct alignas(1024) SharedMemory {
  static constexpr int kEntries = 2;  // the next item's tiles come while one is computed on

  char queries[Config::QueryTile::kBytes];
  StageTiles<Config> stages[Config::kStages];
  float staged_max[Config::kStagedRows], staged_sum[Config::kStagedRows];
  ByteMemory<Config> bytes;
  StateMemory<Config> state;
  Handover of_queries, of_keys[Config::kStages], of_values[Config::kStages], of_entries[kEntries];
  Entry entries[kEntries];
  int32_t arrivals;

  // One thread, before anybody else comes here.
  __device__ void init() {
    of_queries.init(kProducers, kConsumerWarps);
#pragma unroll
    for (int stage = 0; stage < Config::kStages; ++stage) {
      of_keys[stage].init(kProducers, kConsumerWarps);
      of_values[stage].init(kProducers, kConsumerWarps);
    }
#pragma unroll
    for (int entry = 0; entry < kEntries; ++entry) of_entries[entry].init(1, kProducerWarps + kConsumerWarps);
    ptx::fence_mbarrier_init();
  }
};

// How often a thread has passed a ring of kPlaces places.
template <int kPlaces>
struct RingPosition {
  uint32_t count = 0;

  __device__ int place() const { return static_cast<int>(count % kPlaces); }
  __device__ uint32_t parity() const { return count / kPlaces % 2; }
};

__device__ inline void wait_full(const Handover& place, uint32_t parity) {
  ptx::mbarrier_wait(ptx::shared_address(&place.full), parity);
}
__device__ inline void wait_empty(const Handover& place, uint32_t parity) {
  ptx::mbarrier_wait(ptx::shared_address(&place.empty), parity ^ 1);  // new places are empty
}
// By every warp that reads the place, when all its lanes have.
__device__ inline void release(const Handover& place, int lane) {
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&place.empty));
}

}  // namespace chunkattn::sm90

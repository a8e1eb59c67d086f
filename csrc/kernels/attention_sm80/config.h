// Tiles of the attention kernel for mma.sync, by head dims and dtypes.
#pragma once
#include "chunkattn/core/params.h"
#include "chunkattn/kv/widen.cuh"

namespace chunkattn::sm80 {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
// Two CTAs must fit one SM of the smallest data-centre part (sm_80: 164 KiB, 1 KiB of it taken by each CTA); a little
// is left for the task.
constexpr int kCtasPerSm = 2, kSharedPerCta = (164 / kCtasPerSm - 1) * 1024 - 128;

constexpr int larger(int a, int b) { return a > b ? a : b; }

// kType: q and out; kKvType: the cache. Head dims are those of the tile; smaller ones run in it, padded with zeros.
template <DType kType_, DType kKvType_, int kHeadDim_, int kHeadDimV_>
struct Config {
  static constexpr DType kType = kType_, kKvType = kKvType_;
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_, kWidest = larger(kHeadDim, kHeadDimV);
  static_assert(kHeadDim % 32 == 0 && kHeadDimV % 32 == 0, "rows are permuted in pairs of chunks of 8-bit elements");
  static constexpr bool kQuantised = size_of(kKvType) == 1;
  // 8-bit caches are widened to fp16, which holds all their values exactly.
  static constexpr DType kCompute = kQuantised ? DType::kF16 : kType;

  static constexpr bool kScaledQueries = kQuantised;
  static constexpr float kWeightUnit = weight_unit(kKvType);

  // Few columns of V do not average away what rounding takes off the weights (see chunkattn/backends/cuda/select.py).
  static constexpr bool kFineWeights = kHeadDimV <= 32;

  // A scale takes from the largest weight of a row that it is exact, which fp16 results show where few keys have most
  // of the weight: what rounding takes off scaled weights goes into a second product there.
  static constexpr bool kSplitScaled = kQuantised && kType == DType::kF16 && !kFineWeights;

  static constexpr int kElementBytes = size_of(kKvType);
  static constexpr int kQueryBytes = kHeadDim * 2;  // a row in shared memory
  static constexpr int kKeyBytes = kHeadDim * kElementBytes, kValueBytes = kHeadDimV * kElementBytes;
  static constexpr int kSlotRowBytes = larger(kKeyBytes, kValueBytes);

  // Prefill: 32 rows a warp, so that every fragment of K and V read from shared memory serves two products, which
  // halves the reads; the sums of more than 128 columns of V leave registers for 16 rows only. An item, which may be
  // served by the kernel for sm_90 as well, then takes two passes. Blocks of 64 keys, unless registers (widening 8-bit
  // elements beside 128 columns of sums) or shared memory (rows of more than 256 bytes) are short.
  static constexpr int kItemRows = 128, kPrefillRows = kHeadDimV <= 128 ? 128 : 64;
  static constexpr int kPrefillBlock = kWidest > 128 || (kQuantised && kWidest == 128) ? 32 : 64;
  // Decode: 16 rows; each warp has its own quarter of every block of keys.
  static constexpr int kDecodeRows = 16, kDecodeBlock = 64;

  // The sums of a state that leaves registers; eight more columns keep its rows in different banks.
  static constexpr int kStagePitch = kHeadDimV + 8;
  CHUNKATTN_HOST_DEVICE static constexpr int staged(int row, int column) { return row * kStagePitch + column; }
};

// Shared memory of one class of tiles: queries, a ring of slots that hold K and V blocks in turn, then scales. The
// state is staged in the same memory when the ring is done.
template <class Config, bool kIsDecode>
struct Geometry {
  static constexpr bool kDecode = kIsDecode;
  static constexpr int kRows = kDecode ? Config::kDecodeRows : Config::kPrefillRows;
  static constexpr int kBlock = kDecode ? Config::kDecodeBlock : Config::kPrefillBlock;  // keys
  static constexpr int kLoadRows = kBlock / kWarps;  // keys that a warp copies of every block
  // What a warp computes on: its own rows and all keys, or all rows and its own keys.
  static constexpr int kWarpRows = kDecode ? kRows : kRows / kWarps, kWarpKeys = kDecode ? kLoadRows : kBlock;
  static_assert(kWarpRows % 16 == 0 && kWarpKeys % 16 == 0, "tensor cores take 16 rows, and 16 keys at once");

  static constexpr int kSlot = kBlock * Config::kSlotRowBytes;
  static constexpr int kRing = kRows * Config::kQueryBytes;  // offset
  static constexpr int kQueryScales = Config::kQuantised ? kRows * 4 : 0;
  static constexpr int kFitting = (kSharedPerCta - kRing - kQueryScales) / (kSlot + kBlock * 4);
  static constexpr int kStages = kFitting < 4 ? kFitting : 4;  // two blocks ahead hide the latency
  static_assert(kStages >= 2, "the next tile must load while one is computed on");
  static constexpr int kKeyScales = kRing + kStages * kSlot;  // offset, a float a key and slot
  static constexpr int kQueryScalesAt = kKeyScales + kStages * kBlock * 4;

  static constexpr int kSlices = kDecode ? kWarps : 1;  // staged states of the same rows
  static constexpr int kStageRows = kRows * kSlices;
  static constexpr int kStageBytes = kStageRows * (Config::kStagePitch + 2) * 4;
  static constexpr int kBytes = larger(kQueryScalesAt + kQueryScales, kStageBytes);
  static_assert(kBytes <= kSharedPerCta, "two CTAs fit an SM");
};

template <class Config>
constexpr int kSharedBytes = larger(Geometry<Config, false>::kBytes, Geometry<Config, true>::kBytes);

}  // namespace chunkattn::sm80

// Tiles of the attention kernel for wgmma and tensor copies, by head dims and dtypes.
#pragma once
#include "chunkattn/core/params.h"
#include "chunkattn/mma/shared_tile.cuh"
#include "kernels/attention/key_blocks.cuh"
#include "kernels/attention/queue.cuh"

namespace chunkattn::sm90 {

// One CTA an SM: four warps bring tiles, two groups of four compute.
constexpr int kProducerWarps = 4, kConsumerGroups = 2, kConsumerWarps = 4 * kConsumerGroups;
constexpr int kProducers = 32 * kProducerWarps, kConsumers = 32 * kConsumerWarps, kThreads = kProducers + kConsumers;
// A CTA begins with as many registers a thread as all of them can have; what producers do not need goes to consumers.
constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8, kProducerRegisters = 72, kConsumerRegisters = 216;
static_assert(kProducers * kProducerRegisters + kConsumers * kConsumerRegisters <= kThreads * kLaunchRegisters,
              "nobody waits for registers that nobody gives back");
constexpr int kSharedPerCta = 227 * 1024;

// kType: q, out and the cache. Head dims are those of the tile; smaller ones run in it, padded with zeros.
template <DType kType_, DType kKvType_, int kHeadDim_, int kHeadDimV_>
struct Config {
  static constexpr DType kType = kType_, kKvType = kKvType_, kCompute = kType;
  static_assert(kType == kKvType && size_of(kType) == 2, "the cache holds what the tensor cores multiply");
  static constexpr bool kQuantised = false, kFineWeights = false;
  static constexpr int kElementBytes = 2;
  static constexpr float kWeightUnit = 1.0f;  // V has no scales
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_;
  static_assert(kHeadDim % 64 == 0 && kHeadDimV % 64 == 0, "tiles consist of columns of 128 bytes");

  // Prefill: 64 rows a group of consumers. Decode: 16 rows; each warp has its own part of every block of keys.
  static constexpr int kRows = 64 * kConsumerGroups, kDecodeRows = 16;
  static constexpr int kBlock = 128;  // keys
  using QueryTile = ColumnTile<kRows, kHeadDim * 2>;
  using KeyTile = ColumnTile<kBlock, kHeadDim * 2>;
  using ValueTile = ColumnTile<kBlock, kHeadDimV * 2>;
  using Blocks = KeyBlocks<kBlock>;

  // Decodes leave a state a warp in shared memory; permuted so that neither side meets a bank conflict.
  static constexpr int kStagedRows = kConsumerWarps * kDecodeRows;
  CHUNKATTN_HOST_DEVICE static constexpr int staged(int row, int column) {
    return row * kHeadDimV + (column ^ row % 4 * 8);
  }

  static constexpr int kFixedBytes = QueryTile::kBytes + kStagedRows * (kHeadDimV + 2) * 4 + 1024;
  static constexpr int kFitting = (kSharedPerCta - kFixedBytes) / (KeyTile::kBytes + ValueTile::kBytes);
  static constexpr int kStages = kFitting < 4 ? kFitting : 4;  // K and V blocks in shared memory, each
  static_assert(kStages >= 2, "the next block must load while one is computed on");
};

// What the decode tile is to WarpTile: all rows, and a warp's keys of a block.
template <class Config>
struct DecodeGeometry {
  static constexpr int kWarpRows = Config::kDecodeRows, kWarpKeys = Config::kBlock / kConsumerWarps;
  static_assert(kWarpKeys % 16 == 0, "tensor cores take 16 keys at once");
};

}  // namespace chunkattn::sm90

// Tiles of the attention kernel for wgmma and tensor copies, by head dims and dtypes.
#pragma once
#include "chunkattn/core/params.h"
#include "chunkattn/kv/widen.cuh"
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

// kType: q and out; kCacheType: the cache. Head dims are those of the tile; smaller ones run in it, padded with zeros.
template <DType kType_, DType kCacheType_, int kHeadDim_, int kHeadDimV_>
struct Config {
  static constexpr DType kType = kType_, kCacheType = kCacheType_;
  // 8-bit caches are widened on their way to fp16, which holds all their values exactly: consumers never see bytes.
  static constexpr bool kWidens = size_of(kCacheType) == 1;
  static constexpr DType kKvType = kWidens ? DType::kF16 : kCacheType, kCompute = kKvType;  // of tiles
  static_assert(size_of(kType) == 2 && (kWidens || kType == kCacheType), "tiles hold what the tensor cores multiply");
  static constexpr bool kQuantised = false, kFineWeights = false;
  static constexpr int kElementBytes = 2;
  static constexpr bool kScaledQueries = kType != kCompute;  // by powers of two, so that fp16 holds them
  static constexpr float kWeightUnit = weight_unit(kCacheType);
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_;
  static_assert(kHeadDim % 64 == 0 && kHeadDimV % 64 == 0, "tiles consist of columns of 128 bytes");

  // Prefill: 64 rows a group of consumers; the sums of more than 128 columns of V leave registers for 64 keys only.
  static constexpr int kRows = 64 * kConsumerGroups;
  static constexpr int kBlock = kHeadDimV <= 128 ? 128 : 64;  // keys
  // Decode: 16 rows; each warp takes 16 keys of a block. 128 keys occupy all eight warps; 64 keys a team of four, and
  // two teams have blocks in turn.
  static constexpr int kDecodeRows = 16, kDecodeKeys = 16;
  static constexpr int kTeamWarps = kBlock / kDecodeKeys, kTeams = kConsumerWarps / kTeamWarps;
  static constexpr int kTeamRows = kTeamWarps * kDecodeRows;  // of staged states
  using QueryTile = ColumnTile<kRows, kHeadDim * 2>;
  using KeyTile = ColumnTile<kBlock, kHeadDim * 2>;
  using ValueTile = ColumnTile<kBlock, kHeadDimV * 2>;
  using Blocks = KeyBlocks<kBlock>;

  // Bytes on their way: tiles of a ring, of which all but the one that is widened are under way.
  using KeyBytes = SharedTile<kHeadDim>;
  using ValueBytes = SharedTile<kHeadDimV>;
  static constexpr int kByteTile = kBlock * (kHeadDim > kHeadDimV ? kHeadDim : kHeadDimV);
  static constexpr int kByteTiles = kWidens ? 48 * 1024 / kByteTile : 0;
  static constexpr int kRingBytes = kByteTiles * (kByteTile + kBlock * 4);  // scales included

  static constexpr int kStagedRows = kConsumerWarps * kDecodeRows;
  static constexpr int kStageBytes = KeyTile::kBytes + ValueTile::kBytes + (kWidens ? 2 * kBlock * 4 : 0);
  static constexpr int kFixedBytes =
      QueryTile::kBytes + kStagedRows * 2 * 4 + kRingBytes + (kWidens ? kRows * 4 : 0) + 1024;
  static constexpr int fitting(int bytes) { return (kSharedPerCta - kFixedBytes - bytes) / kStageBytes; }

  // Decodes leave a state a warp in shared memory: where the warp's own keys of its last block were, if room of its own
  // would leave fewer than two stages, or, beside a ring of bytes, one stage less.
  static constexpr int kStateBytes = kStagedRows * kHeadDimV * 4;
  static constexpr bool kStateInStage = kWidens || fitting(kStateBytes) < 2;
  static constexpr int kFitting = fitting(kStateInStage ? 0 : kStateBytes);
  static constexpr int kStages = kFitting < 4 ? kFitting : 4;  // K and V blocks in shared memory, each
  static_assert(kStages >= 2, "the next block must load while one is computed on");
  static_assert(kTeams == 1 || (kTeams == kStages && kStateInStage), "a team finds all its blocks in one stage");

  // Where the state lies, permuted so that neither side meets a bank conflict. In a team's stage: a column of 128 bytes
  // of K's tile after the other, then those of V's.
  static_assert(!kStateInStage || kHeadDim >= kHeadDimV, "a stage has room for it");
  CHUNKATTN_HOST_DEVICE static constexpr int staged(int row, int column) {
    if (!kStateInStage) return row * kHeadDimV + (column ^ row % 4 * 8);
    const int team = kTeams > 1 ? row / kTeamRows : 0;
    return team * (kStageBytes / 4) + column / 32 * (KeyTile::kColumnBytes / 4) + (row - team * kTeamRows) * 32 +
           (column % 32 ^ row % 4 * 8);
  }
};

// What the decode tile is to WarpTile: all rows, and a warp's keys of a block.
template <class Config>
struct DecodeGeometry {
  static constexpr int kWarpRows = Config::kDecodeRows, kWarpKeys = Config::kDecodeKeys;
};

}  // namespace chunkattn::sm90

// 8-bit K and V on their way to the tiles that consumers read.
#pragma once
#include "chunkattn/kv/paged_rows.cuh"
#include "chunkattn/kv/widen.cuh"
#include "kernels/attention_sm90/shared.cuh"

namespace chunkattn::sm90 {

// Tiles of bytes, alternately K and V, in a ring of slots: some come by cp.async while one is widened. Each lane widens
// what it copied itself, so that nobody waits for anybody else here. All producers call everything.
template <class Config>
class ByteRing {
 public:
  static constexpr int kWarpKeys = Config::kBlock / kProducerWarps, kSlots = Config::kByteTiles;
  static_assert(kWarpKeys == 32, "a lane brings one token's scale");
  using Shared = SharedMemory<Config>;
  using Loader = PagedLoader<kWarpKeys, kProducerWarps, typename Config::KeyBytes, typename Config::ValueBytes, 1>;

  // Begins to fill the ring with the first tiles of these blocks.
  __device__ ByteRing(const KernelParams& p, Shared& shared, const Task& task, const typename Config::Blocks& blocks,
                      int warp, int lane)
      : p_(p),
        shared_(shared),
        loader_(p.attention, p.page_size, p.key_access, p.value_access, p.neighbour_rows, task.request, task.kv_head,
                blocks.some.begin, blocks.some.end, blocks.first, warp, lane),
        warp_(warp),
        lane_(lane),
        tiles_left_(2 * (blocks.end - blocks.first)) {
#pragma unroll 1
    for (int tile = 0; tile < kSlots; ++tile) load(tile % 2 == 0);
  }

  // Waits for the next tile.
  __device__ void wait() const { ptx::cp_async_wait<kSlots - 1>(); }
  // Widens it, K or V, into a stage that is empty, and lets another one come into its slot.
  __device__ void widen_keys(int stage) {
    widen<typename Config::KeyBytes, typename Config::KeyTile>(shared_.stages[stage].keys);
    copy_scale(p_.attention.k, shared_.bytes.key_scales[stage]);
    load(kSlots % 2 == 0);
  }
  __device__ void widen_values(int stage) {
    widen<typename Config::ValueBytes, typename Config::ValueTile>(shared_.stages[stage].values);
    copy_scale(p_.attention.v, shared_.bytes.value_scales[stage]);
    load(kSlots % 2 != 0);
  }

 private:
  // Into the slot that was widened last; at the start, into all in turn.
  __device__ void load(bool is_keys) {
    if (tiles_left_ > 0) {
      const uint32_t tile = ptx::shared_address(shared_.bytes.tiles[slot_]);
      const uint32_t scales = ptx::shared_address(shared_.bytes.tile_scales[slot_]);
      if (is_keys) {
        loader_.advance();
        loader_.copy_keys(tile, scales);
      } else {
        loader_.copy_values(tile, scales);
      }
      --tiles_left_;
    }
    ptx::cp_async_commit();  // an empty group keeps the count of groups right at the end
    slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
  }

  // What copy_rows() let this lane bring, four chunks at a time: 16 bytes become two chunks of the wide tile.
  template <class Bytes, class Wide>
  __device__ void widen(char* to) const {
    constexpr int kRows = 32 / Bytes::kChunks, kCopies = kWarpKeys / kRows, kBatch = 4;  // rows of a copy
    static_assert(32 % Bytes::kChunks == 0 && kCopies % kBatch == 0, "whole warps copied");
    const int row = warp_ * kWarpKeys + lane_ / Bytes::kChunks, chunk = lane_ % Bytes::kChunks;
    // Eight lanes write at once. Where they share a row, half of them begin with the second chunk: the first ones alone
    // fall into half of the banks.
    const bool second = Bytes::kChunks == 8 && lane_ & 4;
    const uint32_t source = ptx::shared_address(shared_.bytes.tiles[slot_]) + Bytes::offset(row, chunk);
    const uint32_t target = ptx::shared_address(to) + Wide::offset(row, 2 * chunk + second);
#pragma unroll
    for (int first = 0; first < kCopies; first += kBatch) {
      uint4 bytes[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) bytes[i] = ptx::load_shared(Bytes::moved(source, (first + i) * kRows, 0));
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const uint32_t at = Wide::moved(target, (first + i) * kRows, 0);
        const uint4 x = bytes[i];
        widen_eight(at, second ? x.z : x.x, second ? x.w : x.y);
        widen_eight(at ^ 16, second ? x.x : x.z, second ? x.y : x.w);
      }
    }
  }
  __device__ static void widen_eight(uint32_t target, uint32_t low, uint32_t high) {
    const uint2 left = widen_in_order<Config::kCacheType>(low), right = widen_in_order<Config::kCacheType>(high);
    ptx::store_shared(target, make_uint4(left.x, left.y, right.x, right.y));
  }
  __device__ void copy_scale(const PagedPool& pool, float* to) const {
    if (pool.scale.mode != ScaleMode::kPerTokenHead) return;
    const int key = warp_ * kWarpKeys + lane_;
    to[key] = shared_.bytes.tile_scales[slot_][key];
  }

  const KernelParams& p_;
  Shared& shared_;
  Loader loader_;
  const int warp_, lane_;
  int tiles_left_, slot_ = 0;
};

}  // namespace chunkattn::sm90

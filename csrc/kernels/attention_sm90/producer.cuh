// The warps that take items and bring their tiles into shared memory.
#pragma once
#include "chunkattn/kv/paged_rows.cuh"
#include "chunkattn/mma/multiply.cuh"
#include "kernels/attention/query_unit.cuh"
#include "kernels/attention_sm90/byte_ring.cuh"
#include "kernels/attention_sm90/shared.cuh"
#include "kernels/attention_sm90/tensor_maps.h"

namespace chunkattn::sm90 {

template <class Config>
class Producer {
 public:
  using Shared = SharedMemory<Config>;
  static constexpr int kWarpKeys = Config::kBlock / kProducerWarps;
  using Loader = PagedLoader<kWarpKeys, kProducerWarps, typename Config::KeyTile, typename Config::ValueTile, 2>;

  __device__ Producer(const KernelParams& p, const TensorMaps& maps, Shared& shared)
      : p_(p), maps_(maps), shared_(shared), warp_(threadIdx.x / 32), lane_(threadIdx.x % 32) {}

  __device__ void run() {
    RingPosition<Shared::kEntries> position;
#pragma unroll 1
    for (;; ++position.count) {
      Entry& entry = shared_.entries[position.place()];
      const Handover& place = shared_.of_entries[position.place()];
      if (threadIdx.x == 0) {
        wait_empty(place, position.parity());
        entry.done = !take_next(p_, &entry.task);
        ptx::mbarrier_arrive(ptx::shared_address(&place.full));
      }
      __syncwarp();
      wait_full(place, position.parity());
      if (entry.done) return;
      load_item(entry.task, position.count);
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();  // no thread may end before its copies, and this item may be the last one
      release(place, lane_);
    }
  }

 private:
  __device__ void load_item(const Task& task, uint32_t number) {
    if constexpr (!Config::kWidens) load_queries(task, number);
    int32_t begin = task.kv_begin;
#pragma unroll 1
    while (true) {
      const int32_t end = segment_end(p_, task, begin);
      const typename Config::Blocks blocks(p_, task, begin, end);
      if constexpr (Config::kWidens) {
        ByteRing<Config> ring(p_, shared_, task, blocks, warp_, lane_);
        if (begin == task.kv_begin) load_queries(task, number);  // the first keys are under way meanwhile
        widen_keys(ring, blocks);
      } else {
        load_keys(task, blocks);
      }
      if (end >= task.kv_end) return;
      begin = end;
    }
  }

  __device__ void load_queries(const Task& task, uint32_t number) {
    wait_empty(shared_.of_queries, number % 2);
    if (task.is_decode && !p_.attention.invariant) {
      copy_queries<Config::kDecodeRows>(task);
    } else {
      copy_queries<Config::kRows>(task);
    }
    if constexpr (!Config::kScaledQueries) finish_copies(shared_.of_queries, p_.query_access);
  }

  // Rows past the task's end become zeros.
  template <int kTileRows>
  __device__ void copy_queries(const Task& task) {
    constexpr int kRows = kTileRows / kProducerWarps;
    const AttentionParams& a = p_.attention;
    const int32_t row = task.row_begin + warp_ * kRows + lane_ % kRows;
    const PackedRow packed(task, p_.group, row);
    const int64_t offset = packed.token(task) * a.q_stride_token + packed.q_head * a.q_stride_head;
    copy_rows<kRows, typename Config::QueryTile, 2>(
        ptx::shared_address(shared_.queries), warp_ * kRows, static_cast<const char*>(a.q),
        row < task.row_end ? offset * 2 : kNoRow, static_cast<int>(a.head_dim) * 2, p_.query_access, lane_);
    if constexpr (Config::kScaledQueries) narrow_queries<kRows>();
  }

  // bf16 rows become fp16, divided by a power of two each, in place; every lane has the chunks that it copied.
  template <int kRows>
  __device__ void narrow_queries() {
    using Tile = typename Config::QueryTile;
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    constexpr int kStep = 32 / Tile::kChunks, kBatch = kRows > kStep ? 2 : 1;  // rows, and copies
    const int chunk = lane_ % Tile::kChunks;
#pragma unroll 1
    for (int row = warp_ * kRows + lane_ / Tile::kChunks; row < (warp_ + 1) * kRows; row += kBatch * kStep) {
      uint32_t at[kBatch];
      uint4 words[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        at[i] = ptx::shared_address(shared_.queries) + Tile::offset(row + i * kStep, chunk);
        words[i] = ptx::load_shared(at[i]);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float unit = narrow_row(at[i], words[i]);
        if (chunk == 0) shared_.bytes.query_scales[row + i * kStep] = unit;
      }
    }
    ptx::mbarrier_arrive(ptx::shared_address(&shared_.of_queries.full));
  }

  // Stores a chunk of a row, the other chunks of which neighbouring lanes have; returns what it was divided by.
  __device__ static float narrow_row(uint32_t target, uint4 words) {
    using Wide = Multiply<Config::kType>;
    const float2 x[4] = {Wide::unpack(words.x), Wide::unpack(words.y), Wide::unpack(words.z), Wide::unpack(words.w)};
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
#pragma unroll
    for (int other = Config::QueryTile::kChunks / 2; other > 0; other /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, other));
    const PowerOfTwo unit(largest);
    const auto narrow = [&](float2 pair) {
      return Multiply<Config::kCompute>::pack(pair.x * unit.inverse, pair.y * unit.inverse);
    };
    ptx::store_shared(target, make_uint4(narrow(x[0]), narrow(x[1]), narrow(x[2]), narrow(x[3])));
    return unit.value;
  }

  // 8-bit K and V, block by block.
  __device__ void widen_keys(ByteRing<Config>& ring, const typename Config::Blocks& blocks) {
#pragma unroll 1
    for (int32_t block = blocks.first; block < blocks.end; ++block, ++position_.count) {
      const int stage = position_.place();
      const Handover &keys = shared_.of_keys[stage], &values = shared_.of_values[stage];
      ring.wait();
      wait_empty(keys, position_.parity());
      ring.widen_keys(stage);
      ptx::mbarrier_arrive(ptx::shared_address(&keys.full));
      ring.wait();
      wait_empty(values, position_.parity());
      ring.widen_values(stage);
      ptx::mbarrier_arrive(ptx::shared_address(&values.full));
    }
  }

  // Block by block, first K then V. Blocks that are wholly seen come as boxes, where the pool allows it; at the edges,
  // where nothing outside may be read, warps copy rows.
  __device__ void load_keys(const Task& task, const typename Config::Blocks& blocks) {
    Loader loader(p_.attention, p_.page_size, p_.key_access, p_.value_access, p_.neighbour_rows, task.request,
                  task.kv_head, blocks.some.begin, blocks.some.end, blocks.first, warp_, lane_);
#pragma unroll 1
    for (int32_t block = blocks.first; block < blocks.end; ++block, ++position_.count) {
      const bool whole = blocks.some.holds_all(block * Config::kBlock, Config::kBlock);
      const int stage = position_.place();
      loader.advance();

      const Handover& keys = shared_.of_keys[stage];
      wait_empty(keys, position_.parity());
      const uint32_t key_tile = ptx::shared_address(shared_.stages[stage].keys);
      if (whole && maps_.key_box) {
        copy_boxes<typename Config::KeyTile>(loader, task.kv_head, &maps_.keys, maps_.key_box, key_tile, keys);
      } else {
        loader.copy_keys(key_tile, 0);
        finish_copies(keys, p_.key_access);
      }

      const Handover& values = shared_.of_values[stage];
      wait_empty(values, position_.parity());
      const uint32_t value_tile = ptx::shared_address(shared_.stages[stage].values);
      if (whole && maps_.value_box) {
        copy_boxes<typename Config::ValueTile>(loader, task.kv_head, &maps_.values, maps_.value_box, value_tile,
                                               values);
      } else {
        loader.copy_values(value_tile, 0);
        finish_copies(values, p_.value_access);
      }
    }
  }

  // Boxes of `box` rows; the lane of a box's first row brings it, a column of 128 bytes after the other. Lanes past the
  // warp's rows have none.
  template <class Tile>
  __device__ void copy_boxes(const Loader& loader, int32_t kv_head, const CUtensorMap* map, int box, uint32_t tile,
                             const Handover& place) {
    const uint32_t barrier = ptx::shared_address(&place.full);
    const int row = warp_ * kWarpKeys + lane_;
    if (row & (box - 1) || lane_ >= kWarpKeys) return ptx::mbarrier_arrive(barrier);
    ptx::fence_async_proxy();  // warps may have copied rows to this place before
    ptx::mbarrier_arrive_expecting(barrier, box * 128 * Tile::kColumns);
#pragma unroll
    for (int column = 0; column < Tile::kColumns; ++column)
      ptx::copy_box(tile + column * Tile::kColumnBytes + row * 128, map, barrier, column * 64, loader.slot(), kv_head,
                    loader.page());
  }

  // Arrives when this thread's copies have come.
  __device__ void finish_copies(const Handover& place, Access access) {
    const uint32_t barrier = ptx::shared_address(&place.full);
    if (access != Access::kElements) return ptx::mbarrier_arrive_after_cp_async(barrier);
    ptx::mbarrier_arrive(barrier);  // single elements were stored at once
  }

  const KernelParams& p_;
  const TensorMaps& maps_;
  Shared& shared_;
  const int warp_, lane_;
  RingPosition<Config::kStages> position_;
};

}  // namespace chunkattn::sm90

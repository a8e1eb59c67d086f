// The main loops: query rows of one item against its keys, block by block in ascending order.
#pragma once
#include "chunkattn/kv/paged_rows.cuh"
#include "kernels/attention/hidden_values.cuh"
#include "kernels/attention/warp_tile.cuh"
#include "kernels/attention_sm80/queries.cuh"

namespace chunkattn::sm80 {

// A slot holds rows of K or V at one pitch, so that in both the rows of a warp take the same bytes: in decodes warps do
// not wait for each other.
template <class Config>
using KeyTile = SharedTile<Config::kKeyBytes, Config::kSlotRowBytes>;
template <class Config>
using ValueTile = SharedTile<Config::kValueBytes, Config::kSlotRowBytes>;

// K and V blocks in turn in a ring of slots, each a group of cp.async. All threads call everything.
template <class Config, class Geometry>
class Ring {
 public:
  using Loader = PagedLoader<Geometry::kLoadRows, kWarps, KeyTile<Config>, ValueTile<Config>, Config::kElementBytes>;
  static constexpr int kAhead = Geometry::kStages - 1;  // tiles under way while one is computed on

  __device__ Ring(char* shared, const Loader& loader, int num_blocks)
      : loader_(loader),
        slots_(ptx::shared_address(shared) + Geometry::kRing),
        scales_(ptx::shared_address(shared) + Geometry::kKeyScales),
        tiles_left_(2 * num_blocks) {
#pragma unroll
    for (int tile = 0; tile < kAhead; ++tile) load(tile, tile % 2 == 0);
  }

  // Waits for the next tile and begins to load another one into the slot that was computed on before. Alternately K
  // (is_keys) and V.
  __device__ void advance(bool is_keys) {
    ptx::cp_async_wait<kAhead - 1>();
    if constexpr (Geometry::kDecode) {
      __syncwarp();  // a warp reads only what it copied itself
    } else {
      __syncthreads();
    }
    const int before = reading_;
    reading_ = reading_ + 1 == Geometry::kStages ? 0 : reading_ + 1;
    load(before, kAhead % 2 == 0 ? is_keys : !is_keys);
  }

  // Of the tile that advance() waited for: bytes from the first slot, and its place among the scales.
  __device__ uint32_t slot() const { return reading_ * Geometry::kSlot; }
  __device__ int first_scale() const { return reading_ * Geometry::kBlock; }

 private:
  __device__ void load(int place, bool is_keys) {
    if (tiles_left_ > 0) {
      const uint32_t slot = slots_ + place * Geometry::kSlot, scales = scales_ + place * Geometry::kBlock * 4;
      if (is_keys) {
        loader_.advance();
        loader_.copy_keys(slot, scales);
      } else {
        loader_.copy_values(slot, scales);
      }
      --tiles_left_;
    }
    ptx::cp_async_commit();  // an empty group keeps the count of groups right at the end
  }

  Loader loader_;
  const uint32_t slots_, scales_;
  int tiles_left_, reading_ = Geometry::kStages - 1;
};

// Keeps NaN and infinities in V from rows of the tile that do not see their keys; each warp looks through a part of the
// block. Facts that the main loop would have to hold in registers for it are found anew.
template <class Config, class Geometry>
__device__ void keep_hidden(WarpTile<Config, Geometry>& tile, const KernelParams& p, const Task& task,
                            int32_t first_row, int32_t block, int32_t kv_end, float factor, char* shared, uint32_t slot,
                            int first_scale, typename WarpTile<Config, Geometry>::Raised& raised) {
  constexpr int kKeys = Geometry::kLoadRows;
  const int warp = ptx::thread_index() / 32, first = warp * kKeys;
  const int32_t block_key = block * Geometry::kBlock;
  const KeyBlocks<Geometry::kBlock> blocks(p, task, task.segment_begin, kv_end);
  if (!blocks.rows_differ(Geometry::kDecode ? block_key + first : block_key, Geometry::kWarpKeys)) return;
  float* scales = p.attention.v.scale.mode == ScaleMode::kPerTokenHead
                      ? reinterpret_cast<float*>(shared + Geometry::kKeyScales) + first_scale
                      : nullptr;
  HiddenValues<Config, ValueTile<Config>> hidden(shared + Geometry::kRing + slot, scales);
  const float* query_scales =
      Config::kQuantised && !ScoreMod(p.attention, task.kv_head).transforms
          ? reinterpret_cast<const float*>(shared + Geometry::kQueryScalesAt) + (first_row - task.row_begin)
          : nullptr;
  const bool found = hidden.template found<kKeys>(first, tile.lane);
  if constexpr (Geometry::kDecode) {  // nobody else reads a warp's keys
    if (!found) return;
    tile.raise_maxima(factor, query_scales, raised);
    hidden.give(tile, p, task, first_row, block_key, first, kKeys);
    __syncwarp();
    hidden.template clear<kKeys>(first, tile.lane);
    __syncwarp();
  } else {
    if (!ptx::barrier_or(0, kThreads, found)) return;
    tile.raise_maxima(factor, query_scales, raised);
    hidden.give(tile, p, task, first_row, block_key, 0, Geometry::kBlock);
    __syncthreads();
    hidden.template clear<kKeys>(first, tile.lane);
    __syncthreads();
  }
}

// Attention of a task's rows over the keys of its current segment, which ends at kv_end; leaves the state staged at the
// start of shared memory, after a barrier. Ends with nothing under way.
template <class Config, class Geometry>
__device__ void attend(const KernelParams& p, const Task& task, int32_t kv_end, char* shared) {
  const int thread = ptx::thread_index(), lane = thread % 32, warp = thread / 32;
  const KeyBlocks<Geometry::kBlock> blocks(p, task, task.segment_begin, kv_end);

  // The part of the tile that this warp computes on.
  const int warp_row = Geometry::kDecode ? 0 : warp * Geometry::kWarpRows;
  const int warp_key = Geometry::kDecode ? warp * Geometry::kWarpKeys : 0;
  const uint32_t queries_at = ptx::shared_address(shared), ring_at = queries_at + Geometry::kRing;
  const auto queries =
      FragmentReader<Config::kQueryBytes>::rows_then_chunks(queries_at + warp_row * Config::kQueryBytes, lane);
  const auto keys = WarpTile<Config, Geometry>::template key_reader<KeyTile<Config>>(
      ring_at + warp_key * Config::kSlotRowBytes, lane);
  const auto values = TileReader<ValueTile<Config>>::rows_then_chunks(ring_at + warp_key * Config::kSlotRowBytes, lane);
  const float* token_scales = reinterpret_cast<const float*>(shared + Geometry::kKeyScales) + warp_key;
  const float* query_scales =
      Config::kQuantised ? reinterpret_cast<const float*>(shared + Geometry::kQueryScalesAt) + warp_row : nullptr;

  load_queries<Config, Geometry>(p, task, shared);
  using BlockRing = Ring<Config, Geometry>;
  BlockRing ring(
      shared,
      typename BlockRing::Loader(p.attention, p.page_size, p.key_access, p.value_access, p.neighbour_rows, task.request,
                                 task.kv_head, blocks.some.begin, blocks.some.end, blocks.first, warp, lane),
      blocks.end - blocks.first);
  const ScoreMod mod(p.attention, task.kv_head);
  const float factor = mod.softmax_factor();
  const bool transforms = mod.transforms;
  if constexpr (Geometry::kDecode) {  // every warp reads all queries; they came with an older group than the ring's
    ptx::cp_async_wait<BlockRing::kAhead>();
    __syncthreads();
  }

  WarpTile<Config, Geometry> tile(lane);
#pragma unroll 1
  for (int32_t block = blocks.first; block < blocks.end; ++block) {
    const int32_t first_key = block * Geometry::kBlock + warp_key;
    ring.advance(true);
    tile.multiply_keys(queries.moved(0), keys.moved(ring.slot()));
    if (transforms)
      tile.transform(ScoreMod(p.attention, task.kv_head), p, task, task.row_begin + warp_row, first_key,
                     token_scales + ring.first_scale(), query_scales);
    if (!blocks.every.holds_all(first_key, Geometry::kWarpKeys))
      tile.hide(visible_keys(p, task), p, task, task.row_begin + warp_row, first_key);
    ring.advance(false);
    typename WarpTile<Config, Geometry>::Raised raised;
    if (!blocks.every.holds_all(first_key, Geometry::kWarpKeys))
      keep_hidden(tile, p, task, task.row_begin + warp_row, block, kv_end, factor, shared, ring.slot(),
                  ring.first_scale(), raised);
    const float* value_scales = token_scales + ring.first_scale();
    const bool has_value_scales = p.attention.v.scale.mode == ScaleMode::kPerTokenHead;  // asked anew: no register
    __builtin_assume(value_scales != nullptr);  // or the choice below is looked at by its address
    tile.template softmax_step<Config::kSplitScaled>(factor, transforms ? nullptr : query_scales,
                                                     has_value_scales ? value_scales : nullptr, raised);
    if (Config::kSplitScaled && has_value_scales) {
      tile.template multiply_values<true>(values.moved(ring.slot()));
    } else {
      tile.multiply_values(values.moved(ring.slot()));
    }
  }

  // The last block has waited for all before it; without a block the queries are still under way.
  if constexpr (!Geometry::kDecode) ptx::cp_async_wait<0>();
  __syncthreads();  // the staged state takes the place of queries and ring
  float* staged = reinterpret_cast<float*>(shared);
  float* max = staged + Geometry::kStageRows * Config::kStagePitch;
  tile.stage(staged, max, max + Geometry::kStageRows, Geometry::kDecode ? warp * Geometry::kRows : warp_row);
  __syncthreads();
}

}  // namespace chunkattn::sm80

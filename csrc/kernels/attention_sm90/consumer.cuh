// The warps that compute.
#pragma once
#include "chunkattn/ptx/atomic.cuh"
#include "chunkattn/ptx/barrier.cuh"
#include "chunkattn/ptx/matrix.cuh"
#include "kernels/attention/hidden_values.cuh"
#include "kernels/attention/states.cuh"
#include "kernels/attention/warp_tile.cuh"
#include "kernels/attention_sm90/group_tile.cuh"
#include "kernels/attention_sm90/stage_address.cuh"
#include "kernels/attention_sm90/tensor_maps.h"

namespace chunkattn::sm90 {

template <class Config>
class Consumer {
 public:
  using Shared = SharedMemory<Config>;
  using Blocks = typename Config::Blocks;
  using Stage = StageAddress<Config>;
  using Hidden = HiddenValues<Config, typename Config::ValueTile>;
  static constexpr int kTeams = Config::kTeams;  // in decodes

  __device__ Consumer(const KernelParams& p, const TensorMaps& maps, Shared& shared)
      : p_(p), maps_(maps), shared_(shared) {}

  __device__ void run() {
    RingPosition<Shared::kEntries> position;
    if (in_second_group()) give_turn(2);  // the first one of all
#pragma unroll 1
    for (;; ++position.count) {
      const Entry& entry = shared_.entries[position.place()];
      const Handover& place = shared_.of_entries[position.place()];
      wait_full(place, position.parity());
      if (entry.done) return;
      wait_full(shared_.of_queries, position.count % 2);
      if (entry.task.is_decode && !p_.attention.invariant) {
        decode(entry.task);
      } else {
        prefill(entry.task);
      }
      if (entry.task.num_splits > 1) merge_if_last(entry.task);
      release(place, lane());
    }
  }

 private:
  // In invariant mode a task walks segments of its keys, each with a state of its own.
  __device__ void prefill(const Task& task) {
    int32_t begin = task.kv_begin;
#pragma unroll 1
    while (true) {
      const int32_t end = segment_end(p_, task, begin);
      GroupTile<Config> tile(lane());
      attend(task, Blocks(p_, task, begin, end), tile);
      if (end >= task.kv_end) release(shared_.of_queries, lane());
      finish_rows(task, begin, tile);
      if (end >= task.kv_end) return;
      __syncwarp();  // lanes read the maxima and sums that others stored
      begin = end;
    }
  }

  // A block by itself, then all that follow and are seen whole, one step behind: the values of each are multiplied
  // together with the keys of the next one. A block's scores and weights have the same bits either way.
  __device__ void attend(const Task& task, const Blocks& blocks, GroupTile<Config>& tile) {
    const uint32_t to_queries = Stage::first_keys_to_queries(in_second_group());
    const ScoreMod mod(p_.attention, task.kv_head);
    const float factor = mod.softmax_factor();
    const bool transforms = mod.transforms;
#pragma unroll 1
    for (int32_t block = blocks.first; block < blocks.end; ++block, ++position_.count) {
      const int32_t first_key = block * Config::kBlock, first_row = task.row_begin + warp() * 16;
      Stage stage(shared_, position_.place());

      ptx::mbarrier_wait(stage.keys_full(), position_.parity());
      ptx::fence_async_proxy();  // warps copied queries, and at the edges of the keys rows
      stage.describe(shared_, to_queries);
      tile.multiply_keys(stage.queries(), stage.keys());
      release_then_transform(task, stage, lane() == 0, block, transforms, tile);
      typename GroupTile<Config>::Raised raised;
      if (!blocks.every.holds_all(first_key, Config::kBlock)) {
        tile.hide(visible_keys(p_, task), p_, task, first_row, first_key);
        if (blocks.rows_differ(first_key, Config::kBlock))
          keep_hidden(task, tile, first_row, first_key, factor, transforms ? nullptr : query_scales(warp() * 16),
                      raised);
      }
      tile.take_weights(tile.weigh(factor, transforms ? nullptr : query_scales(warp() * 16), value_scales(0), raised));

      ptx::mbarrier_wait(stage.values_full(), position_.parity());
      ptx::fence_async_proxy();  // the same of values, and of what keep_hidden() made 0
      const int32_t whole_end = blocks.whole_end(block + 1);
      if (block + 1 < whole_end) {
#pragma unroll 1
        do stage = overlap(task, to_queries, stage, factor, transforms, ++block, tile);
        while (block < whole_end - 1);
        if (copies_whole_blocks()) ptx::fence_async_proxy();
      }
      tile.multiply_values(stage.values());
      release(shared_.of_values[position_.place()], lane());
    }
  }

  // Scores and weights of a block, while the product with the last one's values is under way; returns the block's
  // stage. Its own values are waited for before they are needed: ptxas moves the wait for the product up as far as data
  // allow, even before the weights are computed, but not across the loop of another wait.
  __device__ Stage overlap(const Task& task, uint32_t to_queries, const Stage& last, float factor, bool transforms,
                           int32_t block, GroupTile<Config>& tile) {
    ++position_.count;
    Stage now(shared_, position_.place());
    const uint32_t parity = position_.parity();
    const uint32_t thread = ptx::thread_index(), group = group_of(thread);  // asked for once a round
    const bool leads = thread % 32 == 0;
    ptx::mbarrier_wait(now.keys_full(), parity);
    if (copies_whole_blocks()) ptx::fence_async_proxy();
    take_turn(group);
    now.describe(shared_, to_queries);
    tile.begin_both(now.queries(), now.keys(), last.values());
    give_turn(group);
    tile.finish_keys();
    release_then_transform(task, now, leads, block, transforms, tile);
    const auto shrink = tile.weigh(factor, transforms ? nullptr : query_scales(warp() * 16), value_scales(0));
    ptx::mbarrier_wait(now.values_full(), parity);
    tile.finish_values();
    release_tile(last.values_empty(), leads);
    tile.take_weights(shrink);
    return now;
  }

  // Whether warps bring blocks that are seen whole too; wgmma sees what tensor copies brought without a fence.
  __device__ bool copies_whole_blocks() const { return Config::kWidens || !maps_.both; }

  // Where keys have scales, these are read before their stage is released.
  __device__ void release_then_transform(const Task& task, const Stage& stage, bool leads, int32_t block,
                                         bool transforms, GroupTile<Config>& tile) {
    if constexpr (!Config::kWidens) release_tile(stage.keys_empty(), leads);
    if (transforms)
      tile.transform(ScoreMod(p_.attention, task.kv_head), p_, task, task.row_begin + warp() * 16,
                     block * Config::kBlock, key_scales(0), query_scales(warp() * 16));
    if constexpr (Config::kWidens) release_tile(stage.keys_empty(), leads);
  }

  // A tile that wgmma alone has read, which all lanes of a warp have waited for; scales they read each by itself.
  __device__ static void release_tile(uint32_t empty, bool leads) {
    if constexpr (Config::kWidens) __syncwarp();
    if (leads) ptx::mbarrier_arrive(empty);
  }

  // Keeps NaN and infinities in V from rows that do not see their keys; each warp looks through a part of the block.
  __device__ void keep_hidden(const Task& task, GroupTile<Config>& tile, int32_t first_row, int32_t first_key,
                              float factor, const float* query_scales, typename GroupTile<Config>::Raised& raised) {
    constexpr int kKeys = Config::kBlock / kConsumerWarps;
    const int stage = position_.place(), mine = warp() * kKeys;
    wait_full(shared_.of_values[stage], position_.parity());
    Hidden hidden(shared_.stages[stage].values, value_scales(0));
    if (!ptx::barrier_or(kAllConsumers, kConsumers, hidden.template found<kKeys>(mine, lane()))) return;
    tile.raise_maxima(factor, query_scales, raised);
    hidden.give(tile, p_, task, first_row, first_key, 0, Config::kBlock);
    synchronise();
    hidden.template clear<kKeys>(mine, lane());
    synchronise();
  }

  // The same where a warp has keys of its own, which nobody else reads.
  template <class Tile>
  __device__ void keep_own_hidden(const Task& task, Tile& tile, int32_t first_key, float factor,
                                  const float* query_scales, typename Tile::Raised& raised) {
    constexpr int kKeys = Config::kDecodeKeys;
    const int stage = position_.place(), mine = own_keys();
    wait_full(shared_.of_values[stage], position_.parity());
    Hidden hidden(shared_.stages[stage].values, value_scales(0));
    if (!hidden.template found<kKeys>(mine, lane())) return;
    tile.raise_maxima(factor, query_scales, raised);
    hidden.give(tile, p_, task, task.row_begin, first_key - mine, mine, kKeys);
    __syncwarp();
    hidden.template clear<kKeys>(mine, lane());
    __syncwarp();
  }

  __device__ void finish_rows(const Task& task, int32_t begin, GroupTile<Config>& tile) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int at = warp() * 16 + tile.row_of(row);
      const bool inside = at < task.num_rows();
      // Rows past the task's end read nobody's carry: it belongs to another warp.
      const FinishedSegment<Config, Config::kRows> finished(p_, task, inside ? begin : task.kv_begin, inside ? at : 0,
                                                            tile.softmax.maximum(row), tile.softmax.total(row));
      tile.for_each_part(row, [&](int column, float4 values) {
        if (inside && column < static_cast<int>(p_.attention.head_dim_v)) finished.store(p_, column, values);
      });
    }
  }

  // All warps have all rows; each has its own keys of its team's blocks, and their states are joined in the end.
  __device__ void decode(const Task& task) {
    // All have read what the last decode staged; and before a warp writes to its keys' rows (a state, zeros for hidden
    // values), wgmma of either group has read the last item there: a barrier at which cp.async arrives orders no more
    // than its copies.
    synchronise();
    using Tile = WarpTile<Config, DecodeGeometry<Config>>;
    using KeyReader = TileReader<typename Config::KeyTile>;
    const Blocks blocks(p_, task, task.kv_begin, task.kv_end);
    const auto queries =
        TileReader<typename Config::QueryTile>::rows_then_chunks(ptx::shared_address(shared_.queries), lane());
    const KeyReader keys = Tile::template key_reader<typename Config::KeyTile>(
        ptx::shared_address(shared_.stages[0].keys) + own_keys() * 128, lane());
    const auto values = TileReader<typename Config::ValueTile>::rows_then_chunks(
        ptx::shared_address(shared_.stages[0].values) + own_keys() * 128, lane());
    const ScoreMod mod(p_.attention, task.kv_head);
    const float factor = mod.softmax_factor();
    const bool transforms = mod.transforms;
    Tile tile(lane());
#pragma unroll 1
    for (int32_t block = blocks.first; block < blocks.end; ++block, ++position_.count) {
      const int stage = position_.place();
      const int32_t first_key = block * Config::kBlock + own_keys();
      const bool holds_state = Config::kStateInStage && block + kTeams >= blocks.end;  // the stage, when all is done
      if (team_of(position_.count) != team()) {
        if (!holds_state) pass_by(stage);
        continue;
      }

      wait_full(shared_.of_keys[stage], position_.parity());
      tile.multiply_keys(queries.moved(0), keys.moved(stage * sizeof(StageTiles<Config>)));
      if (!Config::kWidens && !holds_state) release(shared_.of_keys[stage], lane());
      if (transforms)
        tile.transform(ScoreMod(p_.attention, task.kv_head), p_, task, task.row_begin, first_key,
                       key_scales(own_keys()), query_scales(0));
      if (Config::kWidens && !holds_state) release(shared_.of_keys[stage], lane());
      typename Tile::Raised raised;
      if (!blocks.every.holds_all(first_key, Config::kDecodeKeys)) {
        tile.hide(visible_keys(p_, task), p_, task, task.row_begin, first_key);
        if (blocks.rows_differ(first_key, Config::kDecodeKeys))
          keep_own_hidden(task, tile, first_key, factor, transforms ? nullptr : query_scales(0), raised);
      }
      tile.softmax_step(factor, transforms ? nullptr : query_scales(0), value_scales(own_keys()), raised);

      wait_full(shared_.of_values[stage], position_.parity());
      tile.multiply_values(values.moved(stage * sizeof(StageTiles<Config>)));
      if (!holds_state) release(shared_.of_values[stage], lane());
    }
    release(shared_.of_queries, lane());
    if constexpr (Config::kStateInStage) {
      // Without a block a team has no place for a state, and no state.
      const uint32_t end = position_.count, begin = end - (blocks.end - blocks.first);
      const int num_held = min(blocks.end - blocks.first, kTeams);                        // stages
      const int stage = kTeams == 1 ? (end + Config::kStages - 1) % Config::kStages : 0;  // staged() finds the other's
      float* staged = reinterpret_cast<float*>(shared_.stages[stage].keys);
      if (num_held == kTeams || (num_held > 0 && team_of(begin) == team())) stage_state(tile, staged);
      synchronise();
      join_warps(task, staged, team_of(begin) * Config::kTeamWarps, num_held * Config::kTeamWarps);
#pragma unroll 1
      for (uint32_t place = end - num_held; place < end; ++place) {
        release(shared_.of_keys[place % Config::kStages], lane());
        release(shared_.of_values[place % Config::kStages], lane());
      }
    } else {
      stage_state(tile, shared_.state.staged);
      synchronise();
      join_warps(task, shared_.state.staged, 0, kConsumerWarps);
    }
  }

  // A block of the other team.
  __device__ void pass_by(int stage) {
    wait_full(shared_.of_keys[stage], position_.parity());
    release(shared_.of_keys[stage], lane());
    wait_full(shared_.of_values[stage], position_.parity());
    release(shared_.of_values[stage], lane());
  }

  template <class Tile>
  __device__ void stage_state(Tile& tile, float* staged) {
    tile.stage(staged, shared_.staged_max, shared_.staged_sum, warp() * Config::kDecodeRows);
  }

  // States of so many warps, from the first one of the team on that had the first block: in the same order whichever
  // stage that was.
  __device__ void join_warps(const Task& task, const float* staged, int first_warp, int num_warps) {
    for_each_part<kConsumers>(p_, task, thread(), [&](int row, int column) {
      RowPart part;
#pragma unroll Config::kWidens ? 1 : kConsumerWarps
      for (int warp = 0; warp < num_warps; ++warp) {
        const int at = (first_warp + warp) % kConsumerWarps * Config::kDecodeRows + row;
        part.join(shared_.staged_max[at], shared_.staged_sum[at],
                  *reinterpret_cast<const float4*>(staged + Config::staged(at, column)));
      }
      FinishedSegment<Config, Config::kRows>(p_, task, task.kv_begin, row, part.max, part.sum)
          .store(p_, column, part.values);
    });
  }

  // Announces a partial state; whoever comes last merges all of them.
  __device__ void merge_if_last(const Task& task) {
    synchronise();  // all consumers have stored their part
    if (thread() == 0) shared_.arrivals = ptx::add_acquire_release(p_.arrivals + task.arrival, 1);
    synchronise();
    if (shared_.arrivals + 1 == task.num_splits) merge_splits<Config, kConsumers>(p_, task, thread());
  }

  // Scales beside the tiles of 8-bit caches, from a row or a key of the block on; nullptr where there are none.
  __device__ const float* query_scales(int first) const {
    if constexpr (Config::kScaledQueries) return shared_.bytes.query_scales + first;
    return nullptr;
  }
  __device__ const float* key_scales(int first) const {
    if constexpr (Config::kWidens) return shared_.bytes.key_scales[position_.place()] + first;
    return nullptr;
  }
  // Those of V come with it, which is waited for.
  __device__ float* value_scales(int first) const {
    if constexpr (Config::kWidens) {
      if (p_.attention.v.scale.mode != ScaleMode::kPerTokenHead) return nullptr;
      wait_full(shared_.of_values[position_.place()], position_.parity());
      return shared_.bytes.value_scales[position_.place()] + first;
    }
    return nullptr;
  }

  // Asked for anew wherever they are used: held through the kernel they cost registers.
  __device__ static int thread() { return ptx::thread_index() - kProducers; }
  __device__ static int warp() { return thread() / 32; }
  __device__ static int lane() { return ptx::thread_index() % 32; }

  // In decodes: the team, that of a block by its place in the ring, and the first key of a block that is this warp's.
  __device__ static int team() { return kTeams > 1 && in_second_group(); }
  __device__ static int team_of(uint32_t place) { return static_cast<int>(place % kTeams); }
  __device__ static int own_keys() { return (warp() - team() * Config::kTeamWarps) * Config::kDecodeKeys; }

  // The compiler knows that a vote is the same for all lanes of a warp.
  __device__ static bool in_second_group() { return __all_sync(0xffffffff, thread() >= 128); }

  // Groups begin products in turns: one has the tensor cores while the other one computes weights. Both walk the same
  // blocks, and nobody gives a turn that he has not taken, so that never more than one is open. The last one stays so.
  // A group has the named barrier of its number.
  __device__ static void take_turn(uint32_t group) { ptx::named_barrier_sync(group, kConsumers); }
  __device__ static void give_turn(uint32_t group) { ptx::named_barrier_arrive(3 - group, kConsumers); }
  // 1 or 2, by the thread's index in the CTA.
  static_assert(kProducers == 128 && kConsumerGroups == 2, "128 threads that bring tiles, then twice 128 that compute");
  __device__ static uint32_t group_of(uint32_t thread) { return thread / 128; }

  static constexpr int kAllConsumers = 3;  // their named barrier
  __device__ static void synchronise() { ptx::named_barrier_sync(kAllConsumers, kConsumers); }

  const KernelParams& p_;
  const TensorMaps& maps_;
  Shared& shared_;
  RingPosition<Config::kStages> position_;
};

}  // namespace chunkattn::sm90

// Run-time state: launch, cluster, CTA, warp, barriers, asynchronous operations.
#pragma once
#include <functional>
#include <map>
#include <random>
#include <string_view>
#include <unordered_map>

#include "clocks.h"
#include "global_shadow.h"
#include "program.h"
#include "shared_shadow.h"
#include "tensor_map.h"

namespace ptxemu {

// Windows of the generic address space that are not global memory.
constexpr u64 kSharedWindow = 0x7000000000000000ull;
constexpr u64 kLocalWindow = 0x7100000000000000ull;
constexpr u64 kParamWindow = 0x7200000000000000ull;
constexpr u64 kWindowSize = 1ull << 32;
/// First byte of shared memory that a kernel may use (the first KiB is reserved, as on sm_90).
constexpr u32 kSharedBase = 1024;
/// shared::cluster addresses carry rank + 1 in their top byte; 0 is the CTA itself.
constexpr int kRankShift = 24;

// ---------------------------------------------------------------- barriers

struct MBarrier {
  bool live = false;
  Agent agent = kNobody;  // stands for the async copies that complete here
  u32 expected_arrivals = 0, pending_arrivals = 0;
  s64 pending_bytes = 0;
  u32 phase = 0;   // completed phases
  View arriving;   // what the arrivals of this phase have seen
  View completed;  // the same for the phase before: what a waiter learns
  Agent initialiser = kNobody;
  u32 initialised_at = 0;     // tick of the init
  bool init_fenced = false;   // fence.mbarrier_init or fence.proxy.async came after it
  u32 init_fenced_phase = 0;  // cluster barriers completed by then
};

struct NamedBarrier {
  u32 arrived_threads = 0, expected_threads = 0;
  bool whole = false;    // used without a thread count: all threads that have not ended
  bool touched = false;  // a participant has touched memory since its last barrier
  View arriving;
  u32 votes_all = 1, votes_any = 0, votes_count = 0;  // bar.red
};

// ---------------------------------------------------------------- asynchronous operations

/// A cp.async of a warp, or a cp.async.mbarrier.arrive.
struct CpAsyncOp {
  enum Kind { Copy, MBarrierArrive };
  Kind kind = Copy;
  const Instruction* instruction = nullptr;
  u32 mask = 0;  // lanes not yet waited for
  u32 done = 0;  // lanes whose bytes have moved
  u32 epoch = 0;
  u32 group[kWarpSize];
  u32 destination[kWarpSize];  // shared offsets; the mbarrier for MBarrierArrive
  u64 source[kWarpSize];
  u32 source_bytes[kWarpSize];  // the rest of copy_bytes is zero-filled
};

/// A wgmma.mma_async that was issued but not waited for.
struct WgmmaOp {
  const Instruction* instruction;
  u64 descriptor_a, descriptor_b;
  bool accumulate;
  bool done = false;
  u32 group;
};

/// The B operand of a wgmma as fp32, element (k, n) at k * k_stride + n * n_stride; one a CTA.
struct WgmmaTile {
  u64 descriptor = 0, version = ~0ull;
  int k_stride = 0, n_stride = 0;
  const Instruction* instruction = nullptr;
  std::vector<float> values;
};

/// Who wrote the tile that a wgmma reads: the other warps of the warpgroup only compare this with what they have seen.
struct TileWriters {
  const Instruction* instruction = nullptr;
  u64 descriptor = 0;
  u32 group = 0;
  int warpgroup = 0;
  int count = 0;
  struct Write {
    Agent writer;
    u32 tick;
  } writes[12];
};
constexpr int kTileWriters = 128;  // a table by hash

struct Cta;
struct Warp;

/// A bulk or tensor copy in flight.
struct BulkOp {
  const Instruction* instruction = nullptr;
  Warp* issuer = nullptr;
  u32 lanes = 0;             // who issued it and has not waited for it: several, if all gave the same operands
  bool done = false;         // bytes have moved
  u32 unread_lanes = 0;      // bulk group: of them, those that have not waited for the read of the source
  u32 group = 0, epoch = 0;  // bulk group only
  u64 source = 0, destination = 0;
  u32 bytes = 0;  // non-tensor
  const TensorMap* map = nullptr;
  s32 coordinates[5] = {};
  u32 barrier = 0;
  u16 cta_mask = 0;  // multicast
};

// ---------------------------------------------------------------- warps, CTAs, clusters

enum class WarpState : u8 { Running, AtBarrier, AtClusterBarrier, Done };

struct LaneGroup {
  int pc;
  u32 mask;
  bool stalled;  // waits for lanes of its own warp, or failed a try_wait
};

struct Warp {
  Cta* cta = nullptr;
  int id = 0;
  Agent agent = 0;  // the warp itself; engines follow at fixed distances
  u8* registers = nullptr;
  u32* poison = nullptr;         // [slot / 64]: lanes whose value is undefined
  u32* defined_bytes = nullptr;  // [slot / 64][4]: of these, lanes of which a byte of 32 bits is defined
  bool tainted = false;          // some poison bit may be set
  std::vector<u8> register_storage;
  std::vector<u32> poison_storage, defined_byte_storage;
  std::vector<u8> local_memory, local_defined;

  // SIMT state: the group that runs now, and the others.
  int pc = 0;
  u32 mask = 0, live_mask = 0;
  std::vector<LaneGroup> groups;
  WarpState state = WarpState::Running;
  bool branched = false;  // the handler set pc (or ended lanes) itself
  bool yielded = false;   // let others run
  bool retry = false;     // the instruction did not happen: come back to it
  int barrier_id = 0;
  const Instruction* barrier_instruction = nullptr;
  bool touched_memory = false;  // since its last barrier
  u64 last_barrier = 0;         // which one that was, Cta::barriers_completed then
  u32 last_barrier_threads = 0;
  u32 cluster_phase = 0;   // barrier.cluster arrivals so far
  u32 cluster_waited = 0;  // and waits

  View view;
  ForeignView released;         // what a fence has made ready to be published by a relaxed write
  ForeignView pending_acquire;  // what a relaxed read has seen, for a later fence to acquire

  std::vector<CpAsyncOp> cp_async;
  u32 cp_async_group[kWarpSize] = {};
  u32 cp_async_epoch = 1;
  std::vector<BulkOp> bulk;  // bulk groups only
  u32 bulk_group[kWarpSize] = {};
  u32 bulk_epoch = 1;
  std::vector<WgmmaOp> wgmma;
  u32 wgmma_group = 0;
  std::vector<u8> wgmma_accessed;   // register touched since the last wgmma.fence
  std::vector<u8> wgmma_in_flight;  // registers of operations not waited for
  u64 instruction_count = 0;
  u64 progress_seen = 0;     // Cluster::progress at the last failed wait
  int fruitless_yields = 0;  // failed waits since it changed
  u32 carry = 0;             // condition code of add.cc and its kin

  Agent engine(AgentKind kind) const;
  u32 tick() const { return view.seen.get(agent); }
  void advance() { view.seen.at(agent)++; }
};

constexpr u32 kNamedBarriers = 16;
struct Cluster;
struct Launch;

struct Cta {
  Launch* launch = nullptr;
  Cluster* cluster = nullptr;
  u32 index[3] = {};
  u32 rank = 0;
  u32 thread_count = 0;
  int warp_count = 0;
  std::vector<Warp> warps;
  std::vector<u8> shared;
  SharedShadow shadow;
  u64 shared_version = 0;  // changes with every write, for wgmma_tile
  WgmmaTile wgmma_tile;
  std::vector<TileWriters> tile_writers;
  std::map<u32, MBarrier> mbarriers;           // by shared offset
  u32 barriers_begin = ~0u, barriers_end = 0;  // the range of shared memory that holds them
  NamedBarrier barriers[kNamedBarriers];
  u64 barriers_completed = 0;
};

struct Cluster {
  Launch* launch = nullptr;
  u32 number = 0;
  std::vector<std::unique_ptr<Cta>> ctas;
  int warp_count = 0;  // of all CTAs
  int barrier_agents = 0;
  std::vector<std::string> agent_names;  // of mbarrier agents
  std::vector<BulkOp> bulk;              // copies that complete on an mbarrier
  u32 cluster_arrived = 0, cluster_phase = 0;
  View cluster_arriving, cluster_completed;
  u64 progress = 0;  // grows whenever something may have unblocked a warp
  std::mt19937 random;

  Agent new_barrier_agent() { return Agent(kAgentsPerWarp * warp_count + barrier_agents++); }
  std::string agent_name(Agent agent) const;
};

inline Agent Warp::engine(AgentKind kind) const { return Agent(int(kind) * cta->cluster->warp_count + agent); }

// ---------------------------------------------------------------- launches

enum class AsyncMode : u8 { Lazy, Eager, Random };

struct LaunchOptions {
  bool check_races = true;
  bool check_undefined = true;
  bool check_proxies = true;
  bool check_mbarrier_init = true;    // an mbarrier's init must be fenced before TMA uses it
  bool check_equal_writes = true;     // two unordered writes of the same bytes are a race too
  bool strict_cp_async_proxy = true;  // cp.async data needs fence.proxy.async before wgmma / TMA too
  bool count_memory = false;          // bank conflicts, sectors, bytes
  AsyncMode async = AsyncMode::Lazy;
  u64 seed = 0;  // 0: fixed order
  u8 shared_fill = 0xCD;
  u8 register_fill = 0;
  u32 resident_clusters = 8;
  u64 max_warp_instructions = 4000000000ull;
};

struct Counters {
  u64 warp_instructions = 0, lane_instructions = 0;
  u64 by_class[int(CounterClass::Count)] = {};
  u64 matrix_operations = 0, matrix_flops = 0;
  u64 shared_requests = 0, shared_wavefronts = 0;
  u64 global_requests = 0, global_sectors = 0;
  u64 global_bytes_read = 0, global_bytes_written = 0;
  u64 async_bytes_read = 0, async_bytes_written = 0;
  u64 barriers = 0;
};

/// Something found that did not have to stop the launch.
struct Finding {
  std::string kind, message, where, source, instruction;
  int ptx_line = 0;
  u64 count = 0;
};

/// Publications through global memory: what a release at an address makes visible.
using SyncVariables = std::unordered_map<u64, ForeignView>;

struct Launch {
  Program* program = nullptr;
  u32 grid[3] = {}, block[3] = {}, cluster_shape[3] = {1, 1, 1};
  u32 shared_bytes = 0, dynamic_shared = 0;
  std::vector<u8> params;
  std::vector<Allocation>* allocations = nullptr;  // sorted by address
  Allocation* last_allocation = nullptr;
  GlobalShadow global_shadow;
  SyncVariables sync_variables;
  struct MapVersion {
    u32 version = 0;
    u32 cluster = 0;
    Agent agent = kNobody;
    u32 tick = 0;
  };
  std::unordered_map<u64, MapVersion> map_acquires;  // last acquire of a tensor map, by address
  std::unordered_map<u64, u32> map_versions;         // device-side changes, by address
  LaunchOptions options;
  Counters counters;
  std::vector<Finding> findings;
  std::map<std::pair<std::string_view, const Instruction*>, size_t> finding_index;
};

// ---------------------------------------------------------------- diagnostics

/// Records a finding (once per kind and instruction) and goes on. `kind` is a literal.
void report(Warp& warp, const Instruction& inst, const char* kind, const std::string& message);
/// Counts a finding that is known already; false if it is new, and its message has to be made.
bool report_again(Warp& warp, const Instruction& inst, const char* kind);
/// Stops the launch.
[[noreturn]] void fail(Warp& warp, const Instruction& inst, const char* kind, const std::string& message);
/// "file.py:12" of an instruction, or "" without line information.
std::string source_of(const Program& program, int location);
/// The instruction with its source line, to name the other party of a race.
std::string describe_pc(const Program& program, int pc);

// ---------------------------------------------------------------- lane access

#define FOR_ACTIVE_LANES(warp, lane)                     \
  for (int lane = 0; lane < ::ptxemu::kWarpSize; lane++) \
    if ((warp).mask >> lane & 1)

template <class T>
inline T* lanes(Warp& warp, int slot) {
  return reinterpret_cast<T*>(warp.registers + slot);
}

inline u32& predicate(Warp& warp, int slot) { return *reinterpret_cast<u32*>(warp.registers + slot); }

inline void set_predicate(Warp& warp, int slot, u32 value) {
  u32& destination = predicate(warp, slot);
  destination = (destination & ~warp.mask) | (value & warp.mask);
}

inline u32& poison(Warp& warp, int slot) { return warp.poison[slot >> 6]; }
inline u32& defined_byte(Warp& warp, int slot, int byte) { return warp.defined_bytes[(slot >> 6) * 4 + byte]; }

/// Sets which of the active lanes of a slot are undefined.
inline void set_poison(Warp& warp, int slot, u32 undefined) {
  if (!warp.tainted && !(undefined & warp.mask)) return;
  warp.tainted = true;
  u32& bits = poison(warp, slot);
  bits = (bits & ~warp.mask) | (undefined & warp.mask);
  for (int byte = 0; byte < 4; byte++) defined_byte(warp, slot, byte) &= ~warp.mask;
}

/// Reports a use of undefined data that matters: an address, a stored value, a branch.
void require_defined(Warp& warp, const Instruction& inst, u32 undefined, const char* what);

inline int first_active_lane(const Warp& warp) { return __builtin_ctz(warp.mask); }
inline int pc_of(const Warp& warp, const Instruction& inst) {
  return int(&inst - warp.cta->launch->program->code.data());
}

inline u64 lane_address(Warp& warp, const Address& address, int lane) {
  if (address.base < 0) return address.offset;
  if (address.is64) return lanes<u64>(warp, address.base)[lane] + address.offset;
  return u32(lanes<u32>(warp, address.base)[lane] + u32(address.offset));
}

/// lane_address() of all lanes, active or not.
inline void lane_addresses(Warp& warp, const Address& address, u64* out) {
  const int base = address.base;
  if (base < 0)
    for (int lane = 0; lane < kWarpSize; lane++) out[lane] = address.offset;
  else if (address.is64)
    for (int lane = 0; lane < kWarpSize; lane++) out[lane] = lanes<u64>(warp, base)[lane] + address.offset;
  else
    for (int lane = 0; lane < kWarpSize; lane++) out[lane] = u32(lanes<u32>(warp, base)[lane] + u32(address.offset));
}

/// Reports an address that was computed from undefined data.
inline void check_address(Warp& warp, const Instruction& inst, const Address& address) {
  if (warp.tainted && address.base >= 0 && (poison(warp, address.base) & warp.mask))
    require_defined(warp, inst, poison(warp, address.base), "address");
}

}  // namespace ptxemu

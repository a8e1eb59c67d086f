#include "scheduler.h"

#include <algorithm>

#include "handlers.h"
#include "interpreter.h"

namespace ptxemu {
namespace {

u32 special_value(const Warp& warp, Special which, int lane) {
  const Cta& cta = *warp.cta;
  const Launch& launch = *cta.launch;
  const u32* shape = launch.cluster_shape;
  const u32 thread = warp.id * kWarpSize + lane;
  const auto cluster_id = [&](int k) { return cta.index[k] / shape[k]; };
  const auto in_cluster = [&](int k) { return cta.index[k] % shape[k]; };
  switch (which) {
    case Special::TidX: return thread % launch.block[0];
    case Special::TidY: return thread / launch.block[0] % launch.block[1];
    case Special::TidZ: return thread / (launch.block[0] * launch.block[1]);
    case Special::NtidX: return launch.block[0];
    case Special::NtidY: return launch.block[1];
    case Special::NtidZ: return launch.block[2];
    case Special::CtaidX: return cta.index[0];
    case Special::CtaidY: return cta.index[1];
    case Special::CtaidZ: return cta.index[2];
    case Special::NctaidX: return launch.grid[0];
    case Special::NctaidY: return launch.grid[1];
    case Special::NctaidZ: return launch.grid[2];
    case Special::LaneId: return lane;
    case Special::LaneMaskEq: return 1u << lane;
    case Special::LaneMaskLt: return (1u << lane) - 1;
    case Special::LaneMaskLe: return (2u << lane) - 1;
    case Special::LaneMaskGt: return ~((2u << lane) - 1);
    case Special::LaneMaskGe: return ~((1u << lane) - 1);
    case Special::WarpId: return warp.id;
    case Special::NwarpId: return cta.warp_count;
    case Special::SmId: return cta.cluster->number % 132;
    case Special::NsmId: return 132;
    case Special::ClusteridX: return cluster_id(0);
    case Special::ClusteridY: return cluster_id(1);
    case Special::ClusteridZ: return cluster_id(2);
    case Special::NclusteridX: return launch.grid[0] / shape[0];
    case Special::NclusteridY: return launch.grid[1] / shape[1];
    case Special::NclusteridZ: return launch.grid[2] / shape[2];
    case Special::ClusterCtaidX: return in_cluster(0);
    case Special::ClusterCtaidY: return in_cluster(1);
    case Special::ClusterCtaidZ: return in_cluster(2);
    case Special::ClusterNctaidX: return shape[0];
    case Special::ClusterNctaidY: return shape[1];
    case Special::ClusterNctaidZ: return shape[2];
    case Special::ClusterCtarank: return cta.rank;
    case Special::ClusterNctarank: return shape[0] * shape[1] * shape[2];
    case Special::DynamicSharedSize: return launch.dynamic_shared;
    case Special::TotalSharedSize: return launch.shared_bytes;
    default: return 0;
  }
}

void fill_constant(Warp& warp, const ConstantSlot& constant) {
  const int slot = constant.slot.id;
  if (constant.slot.cls == RegClass::Pred) {
    predicate(warp, slot) = constant.value ? kFullMask : 0;
    return;
  }
  for (int lane = 0; lane < kWarpSize; lane++) switch (constant.slot.cls) {
      case RegClass::B16: lanes<u16>(warp, slot)[lane] = constant.value; break;
      case RegClass::B32: lanes<u32>(warp, slot)[lane] = constant.value; break;
      case RegClass::B64: lanes<u64>(warp, slot)[lane] = constant.value; break;
      default: break;
    }
}

void start_warp(Warp& warp, Cta& cta, int id) {
  Launch& launch = *cta.launch;
  const Program& program = *launch.program;
  warp.cta = &cta;
  warp.id = id;
  warp.agent = Agent(cta.rank * cta.warp_count + id);
  warp.register_storage.assign(program.register_bytes + 64, launch.options.register_fill);
  warp.registers = reinterpret_cast<u8*>(
      (reinterpret_cast<uintptr_t>(warp.register_storage.data()) + 63) & ~uintptr_t(63));
  warp.poison_storage.assign(program.register_bytes / 64 + 1, 0);
  warp.poison = warp.poison_storage.data();
  warp.defined_byte_storage.assign(warp.poison_storage.size() * 4, 0);
  warp.defined_bytes = warp.defined_byte_storage.data();
  warp.local_memory.assign(size_t(kWarpSize) * program.local_bytes, launch.options.register_fill);
  warp.local_defined.assign(warp.local_memory.size(), 0);
  warp.wgmma_accessed.assign(program.wgmma_register_count, 1);
  warp.wgmma_in_flight.assign(program.wgmma_register_count, 0);
  const u32 threads = std::min<u32>(kWarpSize, cta.thread_count - id * kWarpSize);
  warp.live_mask = warp.mask = threads == kWarpSize ? kFullMask : (1u << threads) - 1;
  for (const ConstantSlot& constant : program.constants) fill_constant(warp, constant);
  for (const SpecialSlot& special : program.specials)
    for (int lane = 0; lane < kWarpSize; lane++)
      lanes<u32>(warp, special.slot.id)[lane] = special_value(warp, special.which, lane);
  if (launch.options.check_undefined)
    for (int slot : program.undefined_at_entry) {
      poison(warp, slot) = kFullMask;
      warp.tainted = true;
    }
  warp.view.seen.at(warp.agent) = 1;
}

std::unique_ptr<Cluster> start_cluster(Launch& launch, u32 number) {
  auto cluster = std::make_unique<Cluster>();
  const u32* shape = launch.cluster_shape;
  u32 clusters[3];
  for (int k = 0; k < 3; k++) clusters[k] = launch.grid[k] / shape[k];
  const u32 origin[3] = {number % clusters[0] * shape[0], number / clusters[0] % clusters[1] * shape[1],
                         number / (clusters[0] * clusters[1]) * shape[2]};
  const u32 threads = launch.block[0] * launch.block[1] * launch.block[2];
  const int warps = (threads + kWarpSize - 1) / kWarpSize;
  const u32 size = shape[0] * shape[1] * shape[2];
  cluster->launch = &launch;
  cluster->number = number;
  cluster->warp_count = warps * size;
  cluster->random.seed(launch.options.seed * 7919 + number);
  for (u32 rank = 0; rank < size; rank++) {
    auto cta = std::make_unique<Cta>();
    cta->launch = &launch;
    cta->cluster = cluster.get();
    cta->rank = rank;
    cta->index[0] = origin[0] + rank % shape[0];
    cta->index[1] = origin[1] + rank / shape[0] % shape[1];
    cta->index[2] = origin[2] + rank / (shape[0] * shape[1]);
    cta->thread_count = threads;
    cta->warp_count = warps;
    cta->shared.assign(launch.shared_bytes, launch.options.shared_fill);
    cta->shadow.reset(launch.shared_bytes, kAgentsPerWarp * cluster->warp_count, cluster->warp_count,
                      launch.options.strict_cp_async_proxy);
    cta->warps.resize(warps);
    for (int k = 0; k < warps; k++) start_warp(cta->warps[k], *cta, k);
    cluster->ctas.push_back(std::move(cta));
  }
  return cluster;
}

std::string position(const Warp& warp) {
  const Program& program = *warp.cta->launch->program;
  const bool blocked = warp.state == WarpState::AtBarrier || warp.state == WarpState::AtClusterBarrier;
  const int pc = blocked && warp.barrier_instruction ? pc_of(warp, *warp.barrier_instruction) : warp.pc;
  const char* what = warp.state == WarpState::AtBarrier          ? "waits at a barrier"
                     : warp.state == WarpState::AtClusterBarrier ? "waits for the cluster"
                                                                 : "spins";
  const u32* index = warp.cta->index;
  return format("\n  cta(%u,%u,%u) warp %d %s: %s", index[0], index[1], index[2], warp.id, what,
                describe_pc(program, pc).c_str());
}

/// One cluster in the making: rounds over its warps, completion of asynchronous work, deadlock.
class ClusterRun {
 public:
  ClusterRun(Launch& launch, u32 number) : launch_(launch), cluster_(start_cluster(launch, number)) {
    for (auto& cta : cluster_->ctas)
      for (Warp& warp : cta->warps) order_.push_back(&warp);
  }

  bool done() const { return done_; }
  bool stuck() const { return stuck_; }

  /// Runs every runnable warp once; sets done() or stuck().
  void round() {
    const u64 seed = launch_.options.seed;
    auto& random = cluster_->random;
    bool alive = false, ran = false, all_yielded = true;
    const u64 before = cluster_->progress;
    if (seed) std::shuffle(order_.begin(), order_.end(), random);
    for (Warp* warp : order_) {
      if (warp->state == WarpState::Done) continue;
      alive = true;
      if (warp->state != WarpState::Running) continue;
      ran = true;
      run_warp(*warp, seed ? 100 + random() % 1500 : kUnseededSlice);
      if (!warp->yielded && warp->state == WarpState::Running) all_yielded = false;
    }
    if (!alive) return finish();

    // Asynchronous work moves when everybody waits, or by chance in the random mode.
    const bool blocked = !ran || all_yielded;
    bool moved = false;
    if (launch_.options.async == AsyncMode::Random)
      for (int k = 0; k < 4; k++) moved |= random() % 2 && advance_async();
    if (!moved && blocked && cluster_->progress == before) moved = advance_async();
    const bool progressed = moved || cluster_->progress != before || !blocked;
    idle_rounds_ = progressed ? 0 : idle_rounds_ + 1;
    stuck_ = idle_rounds_ > kIdleRounds;
  }

  /// Where every warp stands, and what the barriers of the cluster still wait for.
  std::string positions() const {
    std::string text;
    for (const auto& cta : cluster_->ctas) {
      for (const Warp& warp : cta->warps)
        if (warp.state != WarpState::Done) text += position(warp);
      for (const auto& [offset, barrier] : cta->mbarriers)
        if (barrier.live && (barrier.pending_bytes || barrier.pending_arrivals != barrier.expected_arrivals))
          text += format("\n  mbarrier shared+0x%x: phase %u waits for %u of %u arrivals and %lld bytes", offset,
                         barrier.phase, barrier.pending_arrivals, barrier.expected_arrivals,
                         (long long)barrier.pending_bytes);
    }
    return text;
  }

  void retry() {
    stuck_ = false;
    idle_rounds_ = 0;
  }

 private:
  static constexpr u64 kUnseededSlice = 20000;
  static constexpr int kIdleRounds = 8;

  /// Lets one pending operation happen. Copies that arrive on an mbarrier come in any order.
  bool advance_async() {
    auto& random = cluster_->random;
    const bool seeded = launch_.options.seed != 0;
    auto& bulk = cluster_->bulk;
    if (launch_.options.async == AsyncMode::Random && random() % 2) {
      Warp& warp = *order_[random() % order_.size()];
      if (perform_wgmma(warp) || perform_cp_async_early(warp, random()) || perform_bulk_store_early(warp, random()))
        return true;
    }
    const bool arrive_first = seeded && random() % 2;
    for (int pass = 0; pass < 2; pass++) {
      if ((pass == 0) != arrive_first && !bulk.empty()) {
        const size_t pick = seeded ? random() % bulk.size() : 0;
        const BulkOp op = bulk[pick];
        bulk.erase(bulk.begin() + pick);
        complete_bulk(op);
        cluster_->progress++;
        return true;
      }
      if ((pass == 0) == arrive_first)
        for (Warp* warp : order_)
          if (complete_cp_async_arrive(*warp)) return true;
    }
    return false;
  }

  void finish() {
    if (!cluster_->bulk.empty()) {
      const BulkOp& op = cluster_->bulk.front();
      report(*op.issuer, *op.instruction, "pending-async", "copy still in flight when its cluster ends");
    }
    done_ = true;
  }

  Launch& launch_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<Warp*> order_;
  int idle_rounds_ = 0;
  bool done_ = false, stuck_ = false;
};

}  // namespace

void run_grid(Launch& launch) {
  const u32* shape = launch.cluster_shape;
  u32 total = 1;
  for (int k = 0; k < 3; k++) {
    if (shape[k] == 0 || launch.grid[k] % shape[k])
      throw EmulatorError("launch", format("grid[%d] = %u is not a multiple of the cluster's %u", k, launch.grid[k],
                                           shape[k]));
    total *= launch.grid[k] / shape[k];
  }
  std::vector<u32> waiting(total);
  for (u32 k = 0; k < total; k++) waiting[k] = total - 1 - k;  // taken from the back
  std::mt19937 random(launch.options.seed);
  const bool seeded = launch.options.seed != 0;
  if (seeded) std::shuffle(waiting.begin(), waiting.end(), random);

  // A cluster that spins on what a later one does is only helped by running that one as well: when all
  // residents are stuck, another one is admitted.
  std::vector<std::unique_ptr<ClusterRun>> resident;
  const auto admit = [&] {
    resident.push_back(std::make_unique<ClusterRun>(launch, waiting.back()));
    waiting.pop_back();
  };
  constexpr int kRoundsPerTurn = 64;
  size_t turn = 0;
  while (!waiting.empty() || !resident.empty()) {
    const size_t wanted = seeded ? launch.options.resident_clusters : 1;
    while (!waiting.empty() && resident.size() < wanted) admit();
    if (seeded) turn = random() % resident.size();
    turn %= resident.size();
    ClusterRun& run = *resident[turn];
    for (int k = 0; k < (seeded ? 1 + int(random() % 8) : kRoundsPerTurn) && !run.done() && !run.stuck(); k++)
      run.round();
    if (run.done()) {
      resident.erase(resident.begin() + turn);
      for (auto& other : resident) other->retry();
      continue;
    }
    const bool all_stuck =
        std::all_of(resident.begin(), resident.end(), [](const auto& other) { return other->stuck(); });
    const bool endless = launch.counters.warp_instructions > launch.options.max_warp_instructions;
    if ((all_stuck && waiting.empty()) || endless) {
      std::string message = endless ? "the launch does not end:" : "no warp can go on:";
      constexpr size_t kShown = 3;
      for (size_t k = 0; k < std::min(kShown, resident.size()); k++) message += resident[k]->positions();
      if (resident.size() > kShown) message += format("\n  ... and %zu more clusters", resident.size() - kShown);
      throw EmulatorError("deadlock", message);
    }
    // An unseeded cluster that did not end in its turn may be waiting for the next one.
    if (!waiting.empty() && (all_stuck || (!seeded && resident.size() < launch.options.resident_clusters))) admit();
    turn++;
  }
}

}  // namespace ptxemu

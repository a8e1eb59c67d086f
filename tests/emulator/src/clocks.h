// Vector clocks: who has seen what of whom.
//
// Everything that touches memory on its own is an agent: each warp; for each warp its cp.async engine,
// its wgmma engine and the two halves (read, write) of its bulk stores; and each mbarrier, which stands
// for the copies that complete on it. An access is remembered as (agent, tick). It is ordered before
// another one if the other's view holds at least that tick for that agent.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "types.h"

namespace ptxemu {

using Agent = u16;
constexpr Agent kNobody = 0xffff;

enum class AgentKind : u8 { Warp, CpAsync, Wgmma, BulkRead, BulkWrite, MBarrier };
constexpr int kAgentsPerWarp = 5;

/// Ticks of all agents of a cluster; agents beyond its size have tick 0.
class VectorClock {
 public:
  u32 get(Agent agent) const { return agent < ticks_.size() ? ticks_[agent] : 0; }
  u32& at(Agent agent) {
    if (agent >= ticks_.size()) ticks_.resize(agent + 1, 0);
    return ticks_[agent];
  }
  void raise(Agent agent, u32 tick) {
    u32& mine = at(agent);
    if (tick > mine) mine = tick;
  }
  void join(const VectorClock& other) {
    if (other.ticks_.size() > ticks_.size()) ticks_.resize(other.ticks_.size(), 0);
    u32* into = ticks_.data();
    const u32* from = other.ticks_.data();
    for (size_t k = 0, n = other.ticks_.size(); k < n; k++) into[k] = into[k] > from[k] ? into[k] : from[k];
  }
  void clear() { ticks_.clear(); }
  bool empty() const { return ticks_.empty(); }

 private:
  std::vector<u32> ticks_;
};

/// What is known of other clusters, by cluster number. Immutable and shared, since it changes only at
/// the rare acquires through global memory.
using ForeignClocks = std::map<u32, VectorClock>;
using ForeignView = std::shared_ptr<const ForeignClocks>;

inline void join_foreign(ForeignView& into, const ForeignView& from) {
  if (!from || into == from) return;
  if (!into) {
    into = from;
    return;
  }
  auto merged = std::make_shared<ForeignClocks>(*into);
  for (const auto& [cluster, clock] : *from) (*merged)[cluster].join(clock);
  into = std::move(merged);
}

/// What a thread has seen, and which part of it is also ordered before its async-proxy operations.
/// fence.proxy.async copies `seen` into `fenced`; barriers carry both.
struct View {
  VectorClock seen, fenced;
  ForeignView foreign, foreign_fenced;

  void join(const View& other) {
    seen.join(other.seen);
    fenced.join(other.fenced);
    join_foreign(foreign, other.foreign);
    join_foreign(foreign_fenced, other.foreign_fenced);
  }
  void fence_async_proxy() {
    fenced.join(seen);
    join_foreign(foreign_fenced, foreign);
  }
};

}  // namespace ptxemu

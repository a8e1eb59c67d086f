// Instruction handlers that are more than one line (scalar arithmetic lives in the decode files).
#pragma once
#include "machine.h"

namespace ptxemu {

// exec_control.cpp: control flow and warp collectives
void exec_nop(Warp&, const Instruction&);
void exec_branch(Warp&, const Instruction&);
void exec_exit(Warp&, const Instruction&);
void exec_trap(Warp&, const Instruction&);
void exec_yield(Warp&, const Instruction&);
void exec_clock(Warp&, const Instruction&);
void exec_warp_sync(Warp&, const Instruction&);
void exec_shuffle(Warp&, const Instruction&);
void exec_elect(Warp&, const Instruction&);
void exec_vote(Warp&, const Instruction&);
void exec_match(Warp&, const Instruction&);
void exec_redux(Warp&, const Instruction&);
void exec_active_mask(Warp&, const Instruction&);
void exec_mapa(Warp&, const Instruction&);
void exec_cta_rank(Warp&, const Instruction&);
void exec_is_space(Warp&, const Instruction&);
void exec_set_registers(Warp&, const Instruction&);

// exec_memory.cpp
void exec_load_store(Warp&, const Instruction&);
void exec_atomic(Warp&, const Instruction&);
void exec_fence(Warp&, const Instruction&);
void exec_proxy_fence(Warp&, const Instruction&);
void exec_tensormap_acquire(Warp&, const Instruction&);
void exec_store_async(Warp&, const Instruction&);

// exec_mma.cpp
void exec_mma(Warp&, const Instruction&);
void exec_ldmatrix(Warp&, const Instruction&);
void exec_stmatrix(Warp&, const Instruction&);
void exec_movmatrix(Warp&, const Instruction&);

// exec_wgmma.cpp
void exec_wgmma(Warp&, const Instruction&);
void exec_wgmma_fence(Warp&, const Instruction&);
void exec_wgmma_commit(Warp&, const Instruction&);
void exec_wgmma_wait(Warp&, const Instruction&);
/// An ordinary instruction touches registers that wgmma uses.
void touch_wgmma_registers(Warp&, const Instruction&);
/// Computes the oldest wgmma that has not been computed yet, if any.
bool perform_wgmma(Warp&);

// exec_barrier.cpp
void exec_barrier(Warp&, const Instruction&);
void exec_cluster_arrive(Warp&, const Instruction&);
void exec_cluster_wait(Warp&, const Instruction&);
void exec_mbarrier_init(Warp&, const Instruction&);
void exec_mbarrier_inval(Warp&, const Instruction&);
void exec_mbarrier_arrive(Warp&, const Instruction&);
void exec_mbarrier_wait(Warp&, const Instruction&);
void exec_mbarrier_pending_count(Warp&, const Instruction&);
/// Completes barriers that only waited for threads which have ended.
void barriers_after_exit(Warp&);

// exec_cp_async.cpp
void exec_cp_async(Warp&, const Instruction&);
void exec_cp_async_commit(Warp&, const Instruction&);
void exec_cp_async_wait(Warp&, const Instruction&);
void exec_cp_async_mbarrier_arrive(Warp&, const Instruction&);
/// Completes the oldest cp.async.mbarrier.arrive of a warp and the copies before it, if any.
bool complete_cp_async_arrive(Warp&);
/// Moves the bytes of a random pending cp.async before anybody waits for it.
bool perform_cp_async_early(Warp&, u32 random);

// exec_tensormap.cpp
void exec_tensormap_replace(Warp&, const Instruction&);
void exec_tensormap_copy(Warp&, const Instruction&);
/// The tensor map at a generic address, as the hardware would accept it.
const TensorMap& tensor_map_at(Warp&, const Instruction&, u64 address);

// exec_bulk.cpp
void exec_bulk_copy(Warp&, const Instruction&);
void exec_tensor_copy(Warp&, const Instruction&);
void exec_bulk_commit(Warp&, const Instruction&);
void exec_bulk_wait(Warp&, const Instruction&);
/// Completes a copy that arrives on an mbarrier.
void complete_bulk(const BulkOp&);
/// Moves the bytes of one pending bulk store.
bool perform_bulk_store_early(Warp&, u32 random);
/// A warp has ended: performs its bulk stores, reports those whose source nobody waited for.
void finish_bulk_stores(Warp&, const Instruction& last);

// mbarrier services for asynchronous operations (exec_barrier.cpp)
MBarrier& mbarrier_at(Warp&, const Instruction&, const struct SharedTarget&);
/// Makes the mbarrier inits that a warp has seen visible to the async proxy and to the cluster.
void fence_mbarrier_inits(Warp&);
/// The mbarrier's initialisation must be visible to the async proxy of whoever uses it.
void check_mbarrier_for_async(Warp&, const Instruction&, MBarrier&, u32 offset);
void mbarrier_complete_bytes(Cta&, Warp& issuer, const Instruction&, u32 offset, s64 bytes);
void mbarrier_complete_arrival(Cta&, Warp&, const Instruction&, u32 offset, const View& view);

/// For collectives with a member mask: whether all named live lanes are here. If not, the instruction is
/// retried once the other lanes of the warp have moved on.
bool converge(Warp&, u32 members);
/// For .aligned instructions: whether all live lanes are here. If not, the others may still be on their way, and the
/// instruction is retried once they have moved on; if they cannot, the launch stops.
bool require_full_warp(Warp&, const Instruction&);

}  // namespace ptxemu

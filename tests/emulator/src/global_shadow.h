// Shadow of the writable global allocations: races between CTAs (and between warps of one), and bytes
// that nobody has written yet.
#pragma once
#include <memory>
#include <unordered_map>

#include "clocks.h"

namespace ptxemu {

struct Warp;
struct Instruction;
struct Allocation;

class GlobalShadow {
 public:
  /// strong: the access takes part in synchronisation (atomics, volatile, relaxed and stronger), so
  /// that two strong accesses never race. agent/tick: who does it; async: in the async proxy.
  struct Access {
    Agent agent;
    u32 tick;
    const View* view;
    bool strong;
    bool async_proxy;
  };

  /// Returns whether all bytes read are defined.
  bool read(Warp& warp, const Instruction& inst, const Access& who, const Allocation& allocation, u64 address,
            u32 bytes);
  void write(Warp& warp, const Instruction& inst, const Access& who, const Allocation& allocation, u64 address,
             u32 bytes);

 private:
  struct Word {
    u32 writer_cluster = 0, writer_tick = 0, reader_cluster = 0, reader_tick = 0;
    Agent writer = kNobody, reader = kNobody;
    u16 written : 4 = 0, read_bytes : 4 = 0, defined : 4 = 0;
    u16 strong_write : 1 = 0, strong_read : 1 = 0, async_write : 1 = 0;
    int writer_pc = 0, reader_pc = 0;
    bool operator==(const Word&) const = default;
  };
  static constexpr u32 kQuadBytes = 16, kPageQuads = 256;
  /// Four words that have seen the same accesses are kept as one, which is the rule for wide accesses and copies.
  struct Page {
    Word quads[kPageQuads];
    std::unique_ptr<Word[]> words;  // made when the first quad is split
    bool split[kPageQuads] = {};
  };

  Page& page(u64 address);
  /// Calls visit(word, its address, bytes of it as a mask) for what an access touches.
  template <class F>
  void for_each_word(const Allocation& allocation, u64 address, u32 bytes, F visit);
  bool ordered(Warp& warp, const Access& who, u32 cluster, Agent agent, u32 tick, bool fenced) const;
  void report_race(Warp& warp, const Instruction& inst, const char* what, const Allocation& allocation,
                   u64 address, u32 cluster, Agent agent, int pc);

  std::unordered_map<u64, std::unique_ptr<Page>> pages_;
  u64 last_number_ = ~0ull;
  Page* last_page_ = nullptr;
};

}  // namespace ptxemu

// Shadow of a CTA's shared memory: who wrote and read each 4-byte word last, and which bytes are defined.
//
// FastTrack-style: the last write of a word as (agent, tick) and the last read of each agent. Byte masks
// keep apart accesses of different bytes of one word.
#pragma once
#include <cstring>
#include <memory>

#include "clocks.h"

namespace ptxemu {

struct Warp;
struct Instruction;
struct Cta;

/// An access about to happen: who, in which proxy, and what that agent is ordered after.
struct Accessor {
  Agent agent;
  u32 tick;
  const View* view;
  bool async_proxy;  // then generic-proxy writes must be in view->fenced, not only in view->seen
};

class SharedShadow {
 public:
  /// strict_cp_async: what cp.async writes needs a proxy fence too.
  void reset(u32 bytes, int agents, int cluster_warps, bool strict_cp_async);

  /// The reads of an agent, by word.
  u64* row(Agent agent);
  /// How a read of all four bytes of a word is remembered.
  static u64 stamp(int pc, u32 tick) { return u64(pc) << 32 | u64(tick) << 4 | 15; }

  Agent writer(u32 word) const { return words_[word].writer; }
  u32 write_tick(u32 word) const { return words_[word].tick; }
  /// Whether a write is ordered before an accessor, and across a proxy fence where that is needed.
  bool is_ordered(const Accessor& who, Agent writer, u32 tick) const {
    if (writer == kNobody || writer == who.agent) return true;
    if (tick > who.view->seen.get(writer)) return false;
    return !who.async_proxy || writer >= generic_agents_ || tick <= who.view->fenced.get(writer);
  }

  /// Reads four words, where all is well and simple: false if read() has to look at them one by one. Without
  /// `reads` the read is only checked, not recorded.
  bool read_quad(const Accessor& who, u32 word, u64* reads, u64 stamp) const {
    static_assert(sizeof(Word) == 8);
    u64 bits[4];
    memcpy(bits, &words_[word], sizeof bits);
    if ((bits[0] ^ bits[1]) | (bits[0] ^ bits[2]) | (bits[0] ^ bits[3])) return false;
    const Word& shadow = words_[word];
    if (shadow.defined != 15) return false;
    if (!is_ordered(who, shadow.writer, shadow.tick)) return false;
    if (!reads) return true;
    u64* mine = reads + word;
    if ((mine[0] ^ mine[1]) | (mine[0] ^ mine[2]) | (mine[0] ^ mine[3])) return false;
    if (u32(mine[0]) != u32(stamp)) mine[0] = mine[1] = mine[2] = mine[3] = stamp;
    return true;
  }

  /// Checks and records a read; returns whether all bytes are defined.
  bool read(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, u32 offset, u32 bytes,
            bool record = true);
  /// value: the bytes about to be written, if known; an unordered write of what is there already may be allowed.
  void write(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, u32 offset, u32 bytes,
             const u8* value = nullptr);

  /// An atomic: like a write, but atomics do not race with each other.
  void atomic(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, u32 offset, u32 bytes);

  /// Definedness without a race check (the accesses of an async operation when it is performed).
  bool is_defined(u32 offset, u32 bytes) const;
  void set_defined(u32 offset, u32 bytes, bool defined);

 private:
  struct Word {
    u32 tick = 0;
    Agent writer = kNobody;
    u8 written = 0;  // bytes of the last write
    u8 defined : 4 = 0;
    u8 atomic : 4 = 0;  // the last write was an atomic
  };
  // A read is pc << 32 | tick << 4 | bytes. One row an agent, made when it reads for the first time.
  using ReaderRow = std::unique_ptr<u64[], void (*)(void*)>;

  bool write_quad(const Accessor& who, u32 word, int pc);
  bool writer_is_ordered(const Word& word, const Accessor& who) const;
  void report_race(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, const char* what,
                   u32 word, Agent other, u32 tick, int pc);

  std::vector<Word> words_;
  std::vector<int> writer_pc_;
  std::vector<ReaderRow> rows_;
  std::vector<std::pair<Agent, u64*>> readers_;
  int cluster_warps_ = 0;
  int generic_agents_ = 0;  // agents below this number write through the generic proxy
};

}  // namespace ptxemu

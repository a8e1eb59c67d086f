// Shadow of a CTA's shared memory: who wrote and read each 4-byte word last, and which bytes are defined.
//
// FastTrack-style: the last write of a word as (agent, tick) and the last read of each agent. Byte masks
// keep apart accesses of different bytes of one word. A quad is 16 bytes, four words.
#pragma once
#include <cstdlib>
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
  /// The reads of one agent.
  class Reads;

  /// strict_cp_async: what cp.async writes needs a proxy fence too.
  void reset(u32 bytes, int agents, int cluster_warps, bool strict_cp_async);

  Reads& reads_of(Agent agent);
  /// How a read of all bytes is remembered.
  static u64 stamp(int pc, u32 tick) { return u64(pc) << 32 | u64(tick) << 4 | 15; }

  /// Whether a write is ordered before an accessor, and across a proxy fence where that is needed.
  bool is_ordered(const Accessor& who, Agent writer, u32 tick) const {
    if (writer == kNobody || writer == who.agent) return true;
    if (tick > who.view->seen.get(writer)) return false;
    return !who.async_proxy || writer >= generic_agents_ || tick <= who.view->fenced.get(writer);
  }

  /// Reads quads one after the other, where all is well and simple.
  class QuadReader;

  /// Checks and records a read; returns whether all bytes are defined.
  bool read(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, u32 offset, u32 bytes,
            bool record = true);
  /// value: the bytes about to be written, if known; an unordered write of what is there already may be allowed.
  void write(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, u32 offset, u32 bytes,
             const u8* value = nullptr);

  /// An atomic: like a write, but atomics do not race with each other.
  void atomic(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, u32 offset, u32 bytes);

  /// Definedness without a race check (the accesses of an async operation when it is performed).
  bool is_defined(u32 offset, u32 bytes);
  void set_defined(u32 offset, u32 bytes, bool defined);

 private:
  struct Word {
    u32 tick = 0;
    Agent writer = kNobody;
    u8 written = 0;  // bytes of the last write
    u8 defined : 4 = 0;
    u8 atomic : 4 = 0;  // the last write was an atomic
  };
  static constexpr u32 kQuadBytes = 16;
  /// What an access touches: a quad, or a word of a quad that is split.
  struct Part {
    bool is_quad;
    u32 index;    // of the quad or the word
    u32 address;  // offset in shared memory
    u32 mask;     // of the bytes in each word
  };

  Word& word(const Part& part) { return (part.is_quad ? quads_ : words_)[part.index]; }
  int& writer_pc(const Part& part) { return (part.is_quad ? quad_pc_ : word_pc_)[part.index]; }
  template <class F>
  void for_each_part(u32 offset, u32 bytes, F visit);
  void split(u32 quad);
  /// Makes one of four words that have come to look alike.
  void try_merge(u32 quad);
  bool write_quads(const Accessor& who, u32 first, u32 count, int pc);
  bool writer_is_ordered(const Word& word, const Accessor& who) const;
  void report_race(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, const char* what, u32 address,
                   Agent other, int pc);

  // Four words that have seen the same accesses are kept as one, which is the rule for wide accesses and copies.
  std::vector<Word> quads_, words_;
  std::vector<int> quad_pc_, word_pc_;
  std::vector<u8> is_split_;                   // by quad: its words count, not the quad
  std::vector<std::unique_ptr<Reads>> reads_;  // by agent; made when it reads for the first time
  std::vector<Reads*> readers_;
  int cluster_warps_ = 0;
  int generic_agents_ = 0;  // agents below this number write through the generic proxy
};

/// A read is pc << 32 | tick << 4 | bytes.
class SharedShadow::Reads {
 public:
  Reads(Agent agent, size_t quad_count)
      : agent(agent), quads(allocate(quad_count), std::free), words(allocate(4 * quad_count), std::free) {}

  u64& at(const Part& part) { return (part.is_quad ? quads : words)[part.index]; }

  const Agent agent;
  const std::unique_ptr<u64[], void (*)(void*)> quads, words;

 private:
  /// Zero pages of the operating system: only what is touched costs anything.
  static u64* allocate(size_t count) { return static_cast<u64*>(std::calloc(count, sizeof(u64))); }
};

class SharedShadow::QuadReader {
 public:
  /// Without `record` the reads are only checked.
  QuadReader(SharedShadow& shadow, const Accessor& who, int pc, bool record)
      : shadow_(shadow),
        who_(who),
        reads_(record ? &shadow.reads_of(who.agent) : nullptr),
        stamp_(stamp(pc, who.tick)) {}

  /// False if SharedShadow::read() has to look at it. on_writer(agent, tick): calls at least once for every last write.
  template <class F>
  bool read(u32 quad, F on_writer) {
    if (shadow_.is_split_[quad]) return false;
    u64 bits;
    memcpy(&bits, &shadow_.quads_[quad], sizeof bits);
    if (bits != known_) {  // neighbours mostly were written together
      const Word& word = shadow_.quads_[quad];
      if (word.defined != 15 || !shadow_.is_ordered(who_, word.writer, word.tick)) return false;
      on_writer(word.writer, word.tick);
      known_ = bits;
    }
    if (reads_ && u32(reads_->quads[quad]) != u32(stamp_)) reads_->quads[quad] = stamp_;
    return true;
  }

 private:
  SharedShadow& shadow_;
  const Accessor who_;
  Reads* const reads_;
  const u64 stamp_;
  u64 known_ = 0;  // no quad that is defined looks so
};

}  // namespace ptxemu

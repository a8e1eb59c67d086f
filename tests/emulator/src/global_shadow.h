// Shadow of the writable global allocations: races between CTAs (and between warps of one), and bytes
// that nobody has written yet.
#pragma once
#include <cstring>
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
    u32 written : 4 = 0, read_bytes : 4 = 0, defined : 4 = 0;
    u32 strong_write : 1 = 0, strong_read : 1 = 0, async_write : 1 = 0, unused : 17 = 0;
    int writer_pc = 0, reader_pc = 0;
    bool operator==(const Word& other) const { return !memcmp(this, &other, sizeof(Word)); }
  };
  static_assert(sizeof(Word) == 32);  // no padding
  static constexpr u32 kQuadBytes = 16, kLineBytes = 64, kPageBytes = 4096;
  static constexpr u32 kQuads = kPageBytes / kQuadBytes, kLines = kPageBytes / kLineBytes, kLineQuads = kQuads / kLines;
  /// The words of a line, or of a quad, that have seen the same accesses are kept as one, which is the rule for wide
  /// accesses and copies.
  struct Page {
    Word lines[kLines];
    std::unique_ptr<Word[]> quads, words;  // made when the first line, the first quad is split
    bool line_is_split[kLines] = {}, quad_is_split[kQuads] = {};
  };

  Page& page(u64 address);
  /// Calls visit(word, its address, bytes of each word as a mask) for what an access touches. It tells whether nothing
  /// was wrong: then what it made of a quad or a line is also what becomes of one after it in the same state.
  template <class F>
  void for_each_word(const Allocation& allocation, u64 address, u32 bytes, F visit);
  template <class F>
  void for_each_word_of_quad(Page& page, u64 quad, u64 begin, u64 end, F visit);
  bool ordered(Warp& warp, const Access& who, u32 cluster, Agent agent, u32 tick, bool fenced) const;
  void report_race(Warp& warp, const Instruction& inst, const char* what, const Allocation& allocation, u64 address,
                   u32 cluster, Agent agent, int pc);

  std::unordered_map<u64, std::unique_ptr<Page>> pages_;
  /// The page found last for each of some residues of page numbers.
  struct {
    u64 number = ~0ull;
    Page* page = nullptr;
  } recent_[64];
};

}  // namespace ptxemu

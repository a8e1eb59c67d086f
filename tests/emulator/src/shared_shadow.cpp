#include "shared_shadow.h"

#include <algorithm>

#include "machine.h"

namespace ptxemu {

void SharedShadow::reset(u32 bytes, int agents, int cluster_warps, bool strict_cp_async) {
  const size_t quads = (bytes + kQuadBytes - 1) / kQuadBytes;
  quads_.assign(quads, Word());
  quad_pc_.assign(quads, -1);
  is_split_.assign(quads, 0);
  words_.resize(4 * quads);
  word_pc_.resize(4 * quads);
  reads_.clear();
  readers_.clear();
  cluster_warps_ = cluster_warps;
  generic_agents_ = cluster_warps * int(strict_cp_async ? AgentKind::Wgmma : AgentKind::CpAsync);
  reads_.reserve(agents);
}

SharedShadow::Reads& SharedShadow::reads_of(Agent agent) {
  if (reads_.size() <= agent) reads_.resize(agent + 1);
  if (!reads_[agent]) {
    reads_[agent] = std::make_unique<Reads>(agent, quads_.size());
    readers_.push_back(reads_[agent].get());
  }
  return *reads_[agent];
}

void SharedShadow::split(u32 quad) {
  is_split_[quad] = 1;
  std::fill_n(&words_[4 * quad], 4, quads_[quad]);
  std::fill_n(&word_pc_[4 * quad], 4, quad_pc_[quad]);
  for (Reads* reads : readers_) std::fill_n(&reads->words[4 * quad], 4, reads->quads[quad]);
}

void SharedShadow::try_merge(u32 quad) {
  const auto alike = [](const auto* four) {
    return !memcmp(four, four + 1, sizeof *four) && !memcmp(four, four + 2, 2 * sizeof *four);
  };
  if (!alike(&words_[4 * quad]) || !alike(&word_pc_[4 * quad])) return;
  for (Reads* reads : readers_)
    if (!alike(&reads->words[4 * quad])) return;
  is_split_[quad] = 0;
  quads_[quad] = words_[4 * quad];
  quad_pc_[quad] = word_pc_[4 * quad];
  for (Reads* reads : readers_) reads->quads[quad] = reads->words[4 * quad];
}

/// Calls visit(part) for all that an access touches.
template <class F>
void SharedShadow::for_each_part(u32 offset, u32 bytes, F visit) {
  const u32 end = offset + bytes;
  for (u32 quad = offset / kQuadBytes; quad * kQuadBytes < end; quad++) {
    const u32 begin = std::max(offset, quad * kQuadBytes), stop = std::min(end, (quad + 1) * kQuadBytes);
    const bool whole = stop - begin == kQuadBytes;
    if (whole && !is_split_[quad]) {
      visit(Part{true, quad, begin, 15});
      continue;
    }
    if (!is_split_[quad]) split(quad);
    for (u32 word = begin / 4; word * 4 < stop; word++) {
      const u32 first = std::max(begin, word * 4) - word * 4, last = std::min(stop, word * 4 + 4) - word * 4;
      visit(Part{false, word, word * 4, ((1u << last) - 1) & ~((1u << first) - 1)});
    }
    if (whole) try_merge(quad);
  }
}

bool SharedShadow::writer_is_ordered(const Word& word, const Accessor& who) const {
  return word.tick <= who.view->seen.get(word.writer);
}

void SharedShadow::report_race(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, const char* what,
                               u32 address, Agent other, int pc) {
  if (report_again(warp, inst, "shared-race")) return;
  const Program& program = *cta.launch->program;
  report(warp, inst, "shared-race",
         format("shared+0x%x: %s by %s, not ordered after %s by %s", address, what,
                cta.cluster->agent_name(who.agent).c_str(), describe_pc(program, pc).c_str(),
                cta.cluster->agent_name(other).c_str()));
}

bool SharedShadow::read(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, u32 offset, u32 bytes,
                        bool record) {
  const LaunchOptions& options = cta.launch->options;
  bool defined = true;
  Reads* reads = options.check_races ? &reads_of(who.agent) : nullptr;
  const u64 pc = u64(pc_of(warp, inst)) << 32;
  for_each_part(offset, bytes, [&](const Part& part) {
    const Word& shadow = word(part);
    const u32 mask = part.mask;
    defined &= (shadow.defined & mask) == mask;
    if (!reads) return;
    u64& mine = reads->at(part);
    const bool same_tick = u32(mine) >> 4 == who.tick;
    if (same_tick && (mine & mask) == mask) return;  // checked before, in the same epoch
    if (shadow.writer != kNobody && shadow.writer != who.agent && (shadow.written & mask)) {
      if (!writer_is_ordered(shadow, who)) {
        report_race(cta, warp, inst, who, "read", part.address, shadow.writer, writer_pc(part));
      } else if (who.async_proxy && options.check_proxies && shadow.writer < generic_agents_ &&
                 shadow.tick > who.view->fenced.get(shadow.writer) && !report_again(warp, inst, "proxy")) {
        report(warp, inst, "proxy",
               format("shared+0x%x: read in the async proxy without fence.proxy.async after %s by %s", part.address,
                      describe_pc(*cta.launch->program, writer_pc(part)).c_str(),
                      cta.cluster->agent_name(shadow.writer).c_str()));
      }
    }
    if (record) mine = pc | u64(who.tick) << 4 | mask | (same_tick ? mine & 15 : 0);
  });
  return defined;
}

/// Writes whole quads, where all is well and simple: false if write() has to look at them one by one.
bool SharedShadow::write_quads(const Accessor& who, u32 first, u32 count, int pc) {
  u64 known = 0;  // what the shadow says of a quad that may be written
  static_assert(sizeof(Word) == sizeof known);
  for (u32 quad = first; quad < first + count; quad++) {
    if (is_split_[quad]) return false;
    u64 bits;
    memcpy(&bits, &quads_[quad], sizeof bits);
    if (bits == known && quad > first) continue;
    known = bits;
    const Word& old = quads_[quad];
    if (old.writer == kNobody || old.writer == who.agent) continue;
    if (old.tick > who.view->seen.get(old.writer)) return false;
    if (who.async_proxy && old.writer < cluster_warps_ && old.tick > who.view->fenced.get(old.writer)) return false;
  }
  for (const Reads* reads : readers_) {
    if (reads->agent == who.agent) continue;
    u32 latest = 0;
    for (u32 quad = first; quad < first + count; quad++) latest = std::max(latest, u32(reads->quads[quad]));
    if (latest >> 4 > who.view->seen.get(reads->agent)) return false;
  }
  Word written;
  written.tick = who.tick;
  written.writer = who.agent;
  written.written = 15;
  written.defined = 15;
  std::fill_n(&quads_[first], count, written);
  std::fill_n(&quad_pc_[first], count, pc);
  return true;
}

void SharedShadow::write(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, u32 offset, u32 bytes,
                         const u8* value) {
  const LaunchOptions& options = cta.launch->options;
  const int pc = pc_of(warp, inst);
  const bool whole_quads = offset % kQuadBytes == 0 && bytes % kQuadBytes == 0;
  if (options.check_races && whole_quads && write_quads(who, offset / kQuadBytes, bytes / kQuadBytes, pc)) return;
  // Whether a write leaves the bytes of a part as they are.
  const auto writes_the_same = [&](const Part& part) {
    const u32 begin = std::max(part.address, offset);
    const u32 end = std::min(part.address + (part.is_quad ? kQuadBytes : 4), offset + bytes);
    return value && !memcmp(&cta.shared[begin], value + (begin - offset), end - begin);
  };
  for_each_part(offset, bytes, [&](const Part& part) {
    Word& shadow = word(part);
    const u32 mask = part.mask;
    shadow.defined |= mask;
    if (!options.check_races) return;
    if (shadow.writer == who.agent && shadow.tick == who.tick) {
      shadow.written |= mask;
    } else {
      if (shadow.writer != kNobody && shadow.writer != who.agent && (shadow.written & mask)) {
        if (!writer_is_ordered(shadow, who)) {
          // The same value from several warps may be allowed: Triton stores so what many threads hold alike.
          if (options.check_equal_writes || !writes_the_same(part))
            report_race(cta, warp, inst, who, "write", part.address, shadow.writer, writer_pc(part));
        } else if (who.async_proxy && options.check_proxies && shadow.writer < cluster_warps_ &&
                   shadow.tick > who.view->fenced.get(shadow.writer) && !report_again(warp, inst, "proxy")) {
          report(warp, inst, "proxy",
                 format("shared+0x%x: written in the async proxy without fence.proxy.async after %s by %s",
                        part.address, describe_pc(*cta.launch->program, writer_pc(part)).c_str(),
                        cta.cluster->agent_name(shadow.writer).c_str()));
        }
      }
      shadow.writer = who.agent;
      shadow.tick = who.tick;
      shadow.written = mask;
      shadow.atomic = 0;
    }
    writer_pc(part) = pc;
    for (Reads* reads : readers_) {
      const u64 seen = reads->at(part);
      if (reads->agent == who.agent || !(seen & mask)) continue;
      if (u32(seen) >> 4 > who.view->seen.get(reads->agent))
        report_race(cta, warp, inst, who, "write", part.address, reads->agent, int(seen >> 32));
    }
  });
}

void SharedShadow::atomic(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, u32 offset, u32 bytes) {
  // Towards other atomics the word looks as if this agent had written it last.
  for_each_part(offset, bytes, [&](const Part& part) {
    if (!word(part).atomic) return;
    word(part).writer = who.agent;
    word(part).tick = who.tick;
  });
  write(cta, warp, inst, who, offset, bytes);
  for_each_part(offset, bytes, [&](const Part& part) { word(part).atomic = 1; });
}

bool SharedShadow::is_defined(u32 offset, u32 bytes) {
  bool defined = true;
  for_each_part(offset, bytes, [&](const Part& part) { defined &= (word(part).defined & part.mask) == part.mask; });
  return defined;
}

void SharedShadow::set_defined(u32 offset, u32 bytes, bool defined) {
  for_each_part(offset, bytes, [&](const Part& part) {
    Word& shadow = word(part);
    shadow.defined = defined ? shadow.defined | part.mask : shadow.defined & ~part.mask;
  });
}

}  // namespace ptxemu

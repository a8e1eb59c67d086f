#include "shared_shadow.h"

#include <algorithm>
#include <cstdlib>

#include "machine.h"

namespace ptxemu {

void SharedShadow::reset(u32 bytes, int agents, int cluster_warps, bool strict_cp_async) {
  words_.assign(bytes / 4 + 4, Word());
  writer_pc_.assign(bytes / 4 + 1, -1);
  rows_.clear();
  readers_.clear();
  cluster_warps_ = cluster_warps;
  generic_agents_ = cluster_warps * int(strict_cp_async ? AgentKind::Wgmma : AgentKind::CpAsync);
  rows_.reserve(agents);
}

u64* SharedShadow::row(Agent agent) {
  while (rows_.size() <= agent) rows_.emplace_back(nullptr, std::free);
  if (!rows_[agent]) {
    // Zero pages of the operating system: only what is touched costs anything.
    rows_[agent].reset(static_cast<u64*>(std::calloc(words_.size(), sizeof(u64))));
    readers_.push_back({agent, rows_[agent].get()});
  }
  return rows_[agent].get();
}

static u32 bytes_in_word(u32 word, u32 offset, u32 bytes) {
  const u32 begin = std::max(offset, word * 4) - word * 4, end = std::min(offset + bytes, word * 4 + 4) - word * 4;
  return ((1u << end) - 1) & ~((1u << begin) - 1);
}

bool SharedShadow::writer_is_ordered(const Word& word, const Accessor& who) const {
  return word.tick <= who.view->seen.get(word.writer);
}

void SharedShadow::report_race(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who,
                               const char* what, u32 word, Agent other, u32 tick, int pc) {
  (void)tick;
  if (report_again(warp, inst, "shared-race")) return;
  const Program& program = *cta.launch->program;
  const std::string both =
      format("shared+0x%x: %s by %s, not ordered after %s by %s", word * 4, what,
             cta.cluster->agent_name(who.agent).c_str(), describe_pc(program, pc).c_str(),
             cta.cluster->agent_name(other).c_str());
  report(warp, inst, "shared-race", both);
}

/// Writes four words, where all is well and simple: false if write() has to look at them one by one.
bool SharedShadow::write_quad(const Accessor& who, u32 word, int pc) {
  u64 bits[4];
  memcpy(bits, &words_[word], sizeof bits);
  if ((bits[0] ^ bits[1]) | (bits[0] ^ bits[2]) | (bits[0] ^ bits[3])) return false;
  const Word& old = words_[word];
  if (old.writer != kNobody && old.writer != who.agent) {
    if (old.tick > who.view->seen.get(old.writer)) return false;
    if (who.async_proxy && old.writer < cluster_warps_ && old.tick > who.view->fenced.get(old.writer)) return false;
  }
  for (const auto& [agent, reads] : readers_) {
    if (agent == who.agent) continue;
    const u64* seen = reads + word;
    if ((seen[0] ^ seen[1]) | (seen[0] ^ seen[2]) | (seen[0] ^ seen[3])) return false;
    if (seen[0] && u32(seen[0]) >> 4 > who.view->seen.get(agent)) return false;
  }
  Word written;
  written.tick = who.tick;
  written.writer = who.agent;
  written.written = 15;
  written.defined = 15;
  for (int k = 0; k < 4; k++) {
    words_[word + k] = written;
    writer_pc_[word + k] = pc;
  }
  return true;
}

bool SharedShadow::read(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, u32 offset,
                        u32 bytes, bool record) {
  const LaunchOptions& options = cta.launch->options;
  const u32 first = offset / 4, last = (offset + bytes - 1) / 4;
  bool defined = true;
  u64* reads = options.check_races ? row(who.agent) : nullptr;
  const u64 pc = u64(pc_of(warp, inst)) << 32;
  for (u32 word = first; word <= last; word++) {
    // Four words at once where they look alike, which is the rule.
    if (reads && word * 4 >= offset && word + 3 <= last && word * 4 + 16 <= offset + bytes &&
        read_quad(who, word, record ? reads : nullptr, pc | u64(who.tick) << 4 | 15)) {
      word += 3;
      continue;
    }
    const Word& shadow = words_[word];
    const u32 mask = bytes_in_word(word, offset, bytes);
    defined &= (shadow.defined & mask) == mask;
    if (!reads) continue;
    u64& mine = reads[word];
    const bool same_tick = u32(mine) >> 4 == who.tick;
    if (same_tick && (mine & mask) == mask) continue;  // checked before, in the same epoch
    if (shadow.writer != kNobody && shadow.writer != who.agent && (shadow.written & mask)) {
      if (!writer_is_ordered(shadow, who)) {
        report_race(cta, warp, inst, who, "read", word, shadow.writer, shadow.tick, writer_pc_[word]);
      } else if (who.async_proxy && options.check_proxies) {
        if (shadow.writer < generic_agents_ && shadow.tick > who.view->fenced.get(shadow.writer))
          report(warp, inst, "proxy",
                 format("shared+0x%x: read in the async proxy without fence.proxy.async after %s by %s",
                        word * 4, describe_pc(*cta.launch->program, writer_pc_[word]).c_str(),
                        cta.cluster->agent_name(shadow.writer).c_str()));
      }
    }
    if (record) mine = pc | u64(who.tick) << 4 | mask | (same_tick ? mine & 15 : 0);
  }
  return defined;
}

/// Whether a write leaves the bytes of a word as they are.
static bool writes_the_same(const Cta& cta, const u8* value, u32 word, u32 offset, u32 bytes) {
  const u32 begin = std::max(word * 4, offset), end = std::min(word * 4 + 4, offset + bytes);
  return !memcmp(&cta.shared[begin], value + (begin - offset), end - begin);
}

void SharedShadow::write(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, u32 offset,
                         u32 bytes, const u8* value) {
  const LaunchOptions& options = cta.launch->options;
  const u32 first = offset / 4, last = (offset + bytes - 1) / 4;
  const int pc = pc_of(warp, inst);
  for (u32 word = first; word <= last; word++) {
    if (options.check_races && word * 4 >= offset && word + 3 <= last && word * 4 + 16 <= offset + bytes &&
        write_quad(who, word, pc)) {
      word += 3;
      continue;
    }
    Word& shadow = words_[word];
    const u32 mask = bytes_in_word(word, offset, bytes);
    shadow.defined |= mask;
    if (!options.check_races) continue;
    if (shadow.writer == who.agent && shadow.tick == who.tick) {
      shadow.written |= mask;
    } else {
      if (shadow.writer != kNobody && shadow.writer != who.agent && (shadow.written & mask)) {
        if (!options.check_equal_writes && value && !writer_is_ordered(shadow, who) &&
            writes_the_same(cta, value, word, offset, bytes)) {
          // The same value from several warps, as Triton stores what many threads hold alike.
        } else if (!writer_is_ordered(shadow, who))
          report_race(cta, warp, inst, who, "write", word, shadow.writer, shadow.tick, writer_pc_[word]);
        else if (who.async_proxy && options.check_proxies && shadow.writer < cluster_warps_ &&
                 shadow.tick > who.view->fenced.get(shadow.writer))
          report(warp, inst, "proxy",
                 format("shared+0x%x: written in the async proxy without fence.proxy.async after %s by %s",
                        word * 4, describe_pc(*cta.launch->program, writer_pc_[word]).c_str(),
                        cta.cluster->agent_name(shadow.writer).c_str()));
      }
      shadow.writer = who.agent;
      shadow.tick = who.tick;
      shadow.written = mask;
      shadow.atomic = 0;
    }
    writer_pc_[word] = pc;
    for (const auto& [agent, reads] : readers_) {
      const u64 seen = reads[word];
      if (agent == who.agent || !(seen & mask)) continue;
      const u32 tick = u32(seen) >> 4;
      if (tick > who.view->seen.get(agent))
        report_race(cta, warp, inst, who, "write", word, agent, tick, int(seen >> 32));
    }
  }
}

void SharedShadow::atomic(Cta& cta, Warp& warp, const Instruction& inst, const Accessor& who, u32 offset,
                          u32 bytes) {
  // Towards other atomics the word looks as if this agent had written it last.
  const u32 first = offset / 4, last = (offset + bytes - 1) / 4;
  for (u32 word = first; word <= last; word++)
    if (words_[word].atomic) {
      words_[word].writer = who.agent;
      words_[word].tick = who.tick;
    }
  write(cta, warp, inst, who, offset, bytes);
  for (u32 word = first; word <= last; word++) words_[word].atomic = 1;
}

bool SharedShadow::is_defined(u32 offset, u32 bytes) const {
  for (u32 word = offset / 4; word <= (offset + bytes - 1) / 4; word++) {
    const u32 mask = bytes_in_word(word, offset, bytes);
    if ((words_[word].defined & mask) != mask) return false;
  }
  return true;
}

void SharedShadow::set_defined(u32 offset, u32 bytes, bool defined) {
  for (u32 word = offset / 4; word <= (offset + bytes - 1) / 4; word++) {
    const u32 mask = bytes_in_word(word, offset, bytes);
    words_[word].defined = defined ? words_[word].defined | mask : words_[word].defined & ~mask;
  }
}

}  // namespace ptxemu

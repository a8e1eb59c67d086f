#include "global_shadow.h"

#include <algorithm>

#include "machine.h"

namespace ptxemu {

GlobalShadow::Page& GlobalShadow::page(u64 address) {
  const u64 number = address / kPageBytes;
  auto& recent = recent_[number % std::size(recent_)];
  if (number != recent.number) {
    auto& slot = pages_[number];
    if (!slot) slot = std::make_unique<Page>();
    recent = {number, slot.get()};
  }
  return *recent.page;
}

static u32 bytes_of_word(u64 word_address, u64 address, u32 bytes) {
  const u64 begin = std::max(address, word_address) - word_address;
  const u64 end = std::min(address + bytes, word_address + 4) - word_address;
  return ((1u << end) - 1) & ~((1u << begin) - 1);
}

template <class F>
void GlobalShadow::for_each_word(const Allocation& allocation, u64 address, u32 bytes, F visit) {
  const u64 end = address + bytes;
  Word before, after;
  bool known = false;
  const auto visit_all = [&](Word& common, u64 at) {
    if (allocation.defined) common.defined = 15;
    if (known && common == before) {
      common = after;
      return;
    }
    before = common;
    known = visit(common, at, 15u);
    after = common;
  };
  const auto visit_part = [&](Word& word, u64 at, u32 mask) {
    if (allocation.defined) word.defined = 15;
    visit(word, at, mask);
  };
  for (u64 line = address & ~u64(kLineBytes - 1); line < end; line += kLineBytes) {
    Page& here = page(line);
    const u32 index = line / kLineBytes % kLines, first = index * kLineQuads;
    const bool whole = address <= line && line + kLineBytes <= end;
    Word& common = here.lines[index];
    if (!here.line_is_split[index]) {
      if (whole) {
        visit_all(common, line);
        continue;
      }
      if (!here.quads) here.quads = std::make_unique<Word[]>(kQuads);
      std::fill_n(&here.quads[first], kLineQuads, common);
      here.line_is_split[index] = true;
    }
    bool alike = whole;
    for (u32 quad = first; quad < first + kLineQuads; quad++) {
      const u64 at = line + (quad - first) * kQuadBytes;
      if (at + kQuadBytes <= address || at >= end) continue;
      if (!here.quad_is_split[quad] && address <= at && at + kQuadBytes <= end)
        visit_all(here.quads[quad], at);
      else
        for_each_word_of_quad(here, at, std::max(address, at), std::min(end, at + kQuadBytes), visit_part);
      alike = alike && !here.quad_is_split[quad] && here.quads[quad] == here.quads[first];
    }
    if (!alike) continue;
    common = here.quads[first];
    here.line_is_split[index] = false;
  }
}

/// A part of a quad, or a quad that is split.
template <class F>
void GlobalShadow::for_each_word_of_quad(Page& page, u64 quad, u64 begin, u64 end, F visit) {
  const u32 index = quad / kQuadBytes % kQuads;
  if (!page.words) page.words = std::make_unique<Word[]>(4 * kQuads);
  Word* words = &page.words[4 * index];
  if (!page.quad_is_split[index]) std::fill_n(words, 4, page.quads[index]);
  page.quad_is_split[index] = true;
  for (u64 at = begin & ~3ull; at < end; at += 4)
    visit(words[(at - quad) / 4], at, bytes_of_word(at, begin, end - begin));
  if (end - begin == kQuadBytes && words[0] == words[1] && words[0] == words[2] && words[0] == words[3]) {
    page.quads[index] = words[0];
    page.quad_is_split[index] = false;
  }
}

bool GlobalShadow::ordered(Warp& warp, const Access& who, u32 cluster, Agent agent, u32 tick, bool fenced) const {
  if (cluster == warp.cta->cluster->number)
    return agent == who.agent || tick <= (fenced ? who.view->fenced : who.view->seen).get(agent);
  const ForeignView& foreign = fenced ? who.view->foreign_fenced : who.view->foreign;
  if (!foreign) return false;
  const auto found = foreign->find(cluster);
  return found != foreign->end() && tick <= found->second.get(agent);
}

void GlobalShadow::report_race(Warp& warp, const Instruction& inst, const char* what, const Allocation& allocation,
                               u64 address, u32 cluster, Agent agent, int pc) {
  if (report_again(warp, inst, "global-race")) return;
  const bool same = cluster == warp.cta->cluster->number;
  const std::string other = same ? warp.cta->cluster->agent_name(agent) : format("cluster %u", cluster);
  report(warp, inst, "global-race",
         format("'%s'+%llu: %s, not ordered after %s by %s", allocation.name.c_str(),
                (unsigned long long)(address - allocation.begin), what,
                describe_pc(*warp.cta->launch->program, pc).c_str(), other.c_str()));
}

bool GlobalShadow::read(Warp& warp, const Instruction& inst, const Access& who, const Allocation& allocation,
                        u64 address, u32 bytes) {
  const LaunchOptions& options = warp.cta->launch->options;
  const u32 cluster = warp.cta->cluster->number;
  bool defined = true;
  for_each_word(allocation, address, bytes, [&](Word& shadow, u64 at, u32 mask) {
    defined &= (shadow.defined & mask) == mask;
    if (!options.check_races) return true;
    bool clean = true;
    if (shadow.writer != kNobody && (shadow.written & mask) && !(who.strong && shadow.strong_write)) {
      clean = ordered(warp, who, shadow.writer_cluster, shadow.writer, shadow.writer_tick, false);
      if (!clean) {
        report_race(warp, inst, "read", allocation, at, shadow.writer_cluster, shadow.writer, shadow.writer_pc);
      } else if (who.async_proxy && options.check_proxies && !shadow.async_write) {
        clean = ordered(warp, who, shadow.writer_cluster, shadow.writer, shadow.writer_tick, true);
        if (!clean && !report_again(warp, inst, "proxy"))
          report(warp, inst, "proxy",
                 format("'%s'+%llu: read in the async proxy without fence.proxy.async after %s",
                        allocation.name.c_str(), (unsigned long long)(at - allocation.begin),
                        describe_pc(*warp.cta->launch->program, shadow.writer_pc).c_str()));
      }
    }
    shadow.read_bytes = shadow.reader == who.agent && shadow.reader_tick == who.tick && shadow.reader_cluster == cluster
                            ? shadow.read_bytes | mask
                            : mask;
    shadow.reader = who.agent;
    shadow.reader_tick = who.tick;
    shadow.reader_cluster = cluster;
    shadow.strong_read = who.strong;
    shadow.reader_pc = pc_of(warp, inst);
    return clean;
  });
  return defined;
}

void GlobalShadow::write(Warp& warp, const Instruction& inst, const Access& who, const Allocation& allocation,
                         u64 address, u32 bytes) {
  const LaunchOptions& options = warp.cta->launch->options;
  const u32 cluster = warp.cta->cluster->number;
  for_each_word(allocation, address, bytes, [&](Word& shadow, u64 at, u32 mask) {
    shadow.defined |= mask;
    if (!options.check_races) return true;
    bool clean = true;
    const auto require_order = [&](u32 other_cluster, Agent agent, u32 tick, int pc) {
      if (ordered(warp, who, other_cluster, agent, tick, false)) return;
      clean = false;
      report_race(warp, inst, "write", allocation, at, other_cluster, agent, pc);
    };
    if (shadow.writer != kNobody && (shadow.written & mask) && !(who.strong && shadow.strong_write))
      require_order(shadow.writer_cluster, shadow.writer, shadow.writer_tick, shadow.writer_pc);
    if (shadow.reader != kNobody && (shadow.read_bytes & mask) && !(who.strong && shadow.strong_read))
      require_order(shadow.reader_cluster, shadow.reader, shadow.reader_tick, shadow.reader_pc);
    const bool same = shadow.writer == who.agent && shadow.writer_tick == who.tick && shadow.writer_cluster == cluster;
    shadow.written = same ? shadow.written | mask : mask;
    shadow.writer = who.agent;
    shadow.writer_tick = who.tick;
    shadow.writer_cluster = cluster;
    shadow.strong_write = who.strong;
    shadow.async_write = who.async_proxy;
    shadow.writer_pc = pc_of(warp, inst);
    return clean;
  });
}

}  // namespace ptxemu

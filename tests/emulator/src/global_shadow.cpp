#include "global_shadow.h"

#include <algorithm>

#include "machine.h"

namespace ptxemu {

GlobalShadow::Page& GlobalShadow::page(u64 address) {
  const u64 number = address / (kQuadBytes * kPageQuads);
  if (number != last_number_) {
    auto& slot = pages_[number];
    if (!slot) slot = std::make_unique<Page>();
    last_number_ = number;
    last_page_ = slot.get();
  }
  return *last_page_;
}

static u32 bytes_of_word(u64 word_address, u64 address, u32 bytes) {
  const u64 begin = std::max(address, word_address) - word_address;
  const u64 end = std::min(address + bytes, word_address + 4) - word_address;
  return ((1u << end) - 1) & ~((1u << begin) - 1);
}

template <class F>
void GlobalShadow::for_each_word(const Allocation& allocation, u64 address, u32 bytes, F visit) {
  const u64 end = address + bytes;
  const u16 defined = allocation.defined ? 15 : 0;
  for (u64 quad = address & ~u64(kQuadBytes - 1); quad < end; quad += kQuadBytes) {
    Page& here = page(quad);
    const u32 index = quad / kQuadBytes % kPageQuads;
    const bool whole = address <= quad && quad + kQuadBytes <= end;
    Word& common = here.quads[index];
    if (!here.split[index]) {
      if (whole) {
        common.defined |= defined;
        visit(common, quad, 15u);
        continue;
      }
      if (!here.words) here.words = std::make_unique<Word[]>(4 * kPageQuads);
      std::fill_n(&here.words[4 * index], 4, common);
      here.split[index] = true;
    }
    Word* words = &here.words[4 * index];
    for (u64 at = std::max<u64>(quad, address & ~3ull); at < std::min<u64>(quad + kQuadBytes, end); at += 4) {
      Word& word = words[(at - quad) / 4];
      word.defined |= defined;
      visit(word, at, bytes_of_word(at, address, bytes));
    }
    if (whole && words[0] == words[1] && words[0] == words[2] && words[0] == words[3]) {
      common = words[0];
      here.split[index] = false;
    }
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
    if (!options.check_races) return;
    if (shadow.writer != kNobody && (shadow.written & mask) && !(who.strong && shadow.strong_write)) {
      if (!ordered(warp, who, shadow.writer_cluster, shadow.writer, shadow.writer_tick, false))
        report_race(warp, inst, "read", allocation, at, shadow.writer_cluster, shadow.writer, shadow.writer_pc);
      else if (who.async_proxy && options.check_proxies && !shadow.async_write &&
               !ordered(warp, who, shadow.writer_cluster, shadow.writer, shadow.writer_tick, true))
        report(warp, inst, "proxy",
               format("'%s'+%llu: read in the async proxy without fence.proxy.async after %s",
                      allocation.name.c_str(), (unsigned long long)(at - allocation.begin),
                      describe_pc(*warp.cta->launch->program, shadow.writer_pc).c_str()));
    }
    shadow.read_bytes = shadow.reader == who.agent && shadow.reader_tick == who.tick &&
                                shadow.reader_cluster == cluster
                            ? shadow.read_bytes | mask
                            : mask;
    shadow.reader = who.agent;
    shadow.reader_tick = who.tick;
    shadow.reader_cluster = cluster;
    shadow.strong_read = who.strong;
    shadow.reader_pc = pc_of(warp, inst);
  });
  return defined;
}

void GlobalShadow::write(Warp& warp, const Instruction& inst, const Access& who, const Allocation& allocation,
                         u64 address, u32 bytes) {
  const LaunchOptions& options = warp.cta->launch->options;
  const u32 cluster = warp.cta->cluster->number;
  for_each_word(allocation, address, bytes, [&](Word& shadow, u64 at, u32 mask) {
    shadow.defined |= mask;
    if (!options.check_races) return;
    if (shadow.writer != kNobody && (shadow.written & mask) && !(who.strong && shadow.strong_write) &&
        !ordered(warp, who, shadow.writer_cluster, shadow.writer, shadow.writer_tick, false))
      report_race(warp, inst, "write", allocation, at, shadow.writer_cluster, shadow.writer, shadow.writer_pc);
    if (shadow.reader != kNobody && (shadow.read_bytes & mask) && !(who.strong && shadow.strong_read) &&
        !ordered(warp, who, shadow.reader_cluster, shadow.reader, shadow.reader_tick, false))
      report_race(warp, inst, "write", allocation, at, shadow.reader_cluster, shadow.reader, shadow.reader_pc);
    const bool same = shadow.writer == who.agent && shadow.writer_tick == who.tick &&
                      shadow.writer_cluster == cluster;
    shadow.written = same ? shadow.written | mask : mask;
    shadow.writer = who.agent;
    shadow.writer_tick = who.tick;
    shadow.writer_cluster = cluster;
    shadow.strong_write = who.strong;
    shadow.async_write = who.async_proxy;
    shadow.writer_pc = pc_of(warp, inst);
  });
}

}  // namespace ptxemu

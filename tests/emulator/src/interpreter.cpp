#include "interpreter.h"

#include "handlers.h"

namespace ptxemu {
namespace {

// Divergence: of the groups that can go on, the one with the lowest pc runs, and groups that meet are
// merged. That reconverges compiled code at its post-dominators without an analysis. A group that waits
// for other lanes of its warp (a failed try_wait, a collective with members missing) is stalled: the
// others go first, which keeps a spin loop inside a warp from starving them.

/// Index of the runnable group with the lowest pc, or -1.
int lowest_group(const std::vector<LaneGroup>& groups) {
  int best = -1;
  for (size_t k = 0; k < groups.size(); k++)
    if (!groups[k].stalled && (best < 0 || groups[k].pc < groups[best].pc)) best = int(k);
  return best;
}

void take_group(Warp& warp, int k) {
  warp.pc = warp.groups[k].pc;
  warp.mask = warp.groups[k].mask;
  warp.groups.erase(warp.groups.begin() + k);
}

/// Picks the group that runs next; false if nothing of the warp is left, or all groups are stalled.
bool select_group(Warp& warp) {
  auto& groups = warp.groups;
  if (!warp.mask) {
    if (groups.empty()) return false;
    int next = lowest_group(groups);
    if (next < 0) {
      for (LaneGroup& group : groups) group.stalled = false;
      next = lowest_group(groups);
    }
    take_group(warp, next);
  }
  for (size_t k = 0; k < groups.size();) {
    if (groups[k].pc == warp.pc) {
      warp.mask |= groups[k].mask;
      groups.erase(groups.begin() + k);
    } else {
      k++;
    }
  }
  const int lowest = lowest_group(groups);
  if (lowest >= 0 && groups[lowest].pc < warp.pc) {
    const LaneGroup current{warp.pc, warp.mask, false};
    take_group(warp, lowest);
    groups.push_back(current);
  }
  return true;
}

/// Lets the other groups of a diverged warp run before this one; true if there are any. A failed wait is first
/// left to the other warps: compiled code expects its lanes to stay together where they can.
bool stall_group(Warp& warp) {
  constexpr int kPatience = 4;
  if (warp.yielded) {
    const u64 progress = warp.cta->cluster->progress;
    warp.fruitless_yields = progress == warp.progress_seen ? warp.fruitless_yields + 1 : 0;
    warp.progress_seen = progress;
    if (warp.fruitless_yields < kPatience) return false;
  }
  if (lowest_group(warp.groups) < 0) {
    for (LaneGroup& group : warp.groups) group.stalled = false;
    return false;
  }
  warp.groups.push_back({warp.pc, warp.mask, true});
  warp.mask = 0;
  return true;
}

/// Lanes whose result is undefined, by what the instruction reads.
u32 undefined_result(Warp& warp, const Instruction& inst) {
  const auto at = [&](size_t k) { return poison(warp, inst.operands[k]); };
  u32 undefined = 0;
  switch (inst.taint) {
    case Taint::Own: return 0;
    case Taint::Select: {
      const u32 choice = predicate(warp, inst.operands[3]);
      return (at(1) & choice) | (at(2) & ~choice) | at(3);
    }
    case Taint::AndLogic:
    case Taint::OrLogic: {
      // The last operand is the other predicate; a value of it that decides the result defines it.
      const size_t last = inst.operands.size() - 1;
      u32 value = predicate(warp, inst.operands[last]);
      if (inst.predicate_negated) value = ~value;
      const auto open = [&](u32 v) { return inst.taint == Taint::AndLogic ? v : ~v; };
      if (last == 2) {  // and.pred, or.pred: both sources can decide
        const u32 first = predicate(warp, inst.operands[1]);
        return (at(1) & (open(value) | at(2))) | (at(2) & (open(first) | at(1)));
      }
      for (size_t k = 1; k < last; k++) undefined |= at(k);
      return (undefined & (open(value) | at(last))) | at(last);
    }
    default:
      for (size_t k = inst.definitions; k < inst.operands.size(); k++)
        if (inst.operands[k] >= 0) undefined |= at(k);
      return undefined;
  }
}

/// Lanes in which a byte of a permutation is undefined. Digits 0 to 3 of the selector are bytes of the first source.
u32 undefined_byte(Warp& warp, const Instruction& inst, int byte) {
  const u32 digit = inst.immediate >> 4 * byte & 7;
  const int source = inst.operands[1 + digit / 4];
  return poison(warp, source) & ~defined_byte(warp, source, digit % 4);
}

void apply_undefined(Warp& warp, const Instruction& inst, u32 undefined) {
  for (size_t k = 0; k < inst.definitions && k < inst.operands.size(); k++)
    if (inst.operands[k] >= 0) set_poison(warp, inst.operands[k], undefined);
  if (inst.predicate_out >= 0) set_poison(warp, inst.predicate_out, undefined);
}

/// The handler, with the bookkeeping of undefined lanes around it.
void execute_tainted(Warp& warp, const Instruction& inst, u32 undefined_guard) {
  u32 undefined = 0, bytes[4] = {};
  if (inst.taint == Taint::Bytes) {
    for (int byte = 0; byte < 4; byte++) undefined |= bytes[byte] = undefined_byte(warp, inst, byte);
  } else {
    undefined = undefined_result(warp, inst);
  }
  inst.handler(warp, inst);
  if (inst.taint != Taint::Own)
    apply_undefined(warp, inst, undefined | undefined_guard);
  else if (undefined_guard)
    for (size_t k = 0; k < inst.definitions && k < inst.operands.size(); k++)
      if (inst.operands[k] >= 0) {
        poison(warp, inst.operands[k]) |= undefined_guard;
        for (int byte = 0; byte < 4; byte++) defined_byte(warp, inst.operands[k], byte) &= ~undefined_guard;
      }
  if (inst.taint == Taint::Bytes && undefined)
    for (int byte = 0; byte < 4; byte++)
      defined_byte(warp, inst.operands[0], byte) |= undefined & ~bytes[byte] & ~undefined_guard & warp.mask;
}

inline void execute(Warp& warp, const Instruction& inst, u32 undefined_guard = 0) {
  if (!inst.wgmma_registers.empty()) [[unlikely]]
    touch_wgmma_registers(warp, inst);
  if (warp.tainted) [[unlikely]]
    execute_tainted(warp, inst, undefined_guard);
  else
    inst.handler(warp, inst);
}

/// Undefined lanes go away as registers are written again: then the fast path is back.
void refresh_taint(Warp& warp) {
  if (!warp.tainted) return;
  u32 any = 0;
  for (u32 bits : warp.poison_storage) any |= bits;
  warp.tainted = (any & warp.live_mask) != 0;
}

void finish_warp(Warp& warp) {
  const Instruction& last = warp.cta->launch->program->code.back();
  warp.state = WarpState::Done;
  if (!warp.wgmma.empty())
    report(warp, *warp.wgmma.front().instruction, "pending-async", "wgmma never waited for");
  for (const CpAsyncOp& op : warp.cp_async)
    if (op.kind == CpAsyncOp::Copy) {
      report(warp, *op.instruction, "pending-async", "cp.async never waited for");
      break;
    }
  finish_bulk_stores(warp, last);
  barriers_after_exit(warp);
  warp.cta->cluster->progress++;
}

}  // namespace

void run_warp(Warp& warp, u64 budget) {
  Launch& launch = *warp.cta->launch;
  Instruction* code = launch.program->code.data();
  Counters& counters = launch.counters;
  u64 executed = 0, lane_instructions = 0;
  warp.yielded = false;
  refresh_taint(warp);

  for (; executed < budget; executed++) {
    if (!warp.groups.empty() || !warp.mask) {
      if (!select_group(warp)) {
        finish_warp(warp);
        break;
      }
    }
    Instruction& inst = code[warp.pc];
    inst.executed++;
    warp.touched_memory |= inst.touches_memory;
    counters.by_class[int(inst.counter)]++;
    warp.branched = false;
    if (inst.guard < 0) {
      lane_instructions += __builtin_popcount(warp.mask);
      execute(warp, inst);
      if (!warp.branched && !warp.retry) warp.pc++;
    } else {
      const u32 guard = predicate(warp, inst.guard), all = warp.mask;
      const u32 taken = all & (inst.guard_negated ? ~guard : guard);
      u32 undefined_guard = 0;
      if (warp.tainted) [[unlikely]] {
        undefined_guard = poison(warp, inst.guard) & all;
        if (undefined_guard && (inst.is_branch || inst.is_exit || inst.has_side_effect)) {
          require_defined(warp, inst, undefined_guard, inst.is_branch ? "branch condition" : "guard");
          undefined_guard = 0;
        }
      }
      lane_instructions += __builtin_popcount(taken);
      if (!taken) {
        inst.idle++;
        warp.pc++;
      } else if (inst.is_branch) {
        if (taken != all) warp.groups.push_back({warp.pc + 1, all & ~taken, false});
        warp.mask = taken;
        warp.pc = inst.branch_target;
      } else {
        warp.mask = taken;
        execute(warp, inst, undefined_guard);
        if (inst.is_exit)
          warp.mask = all & ~taken;
        else
          warp.mask = all;
        if (!warp.retry) warp.pc++;
      }
    }
    if (warp.state != WarpState::Running) {
      executed++;
      break;
    }
    if (warp.retry || warp.yielded) [[unlikely]] {
      warp.retry = false;
      if (stall_group(warp)) {
        warp.yielded = false;
        continue;
      }
      warp.yielded = true;
      executed++;
      break;
    }
  }
  warp.instruction_count += executed;
  counters.warp_instructions += executed;
  counters.lane_instructions += lane_instructions;
}

// ---------------------------------------------------------------- diagnostics

/// The place in the kernel's own function, then the way into the headers that the code was inlined from.
std::string source_of(const Program& program, int location) {
  if (location < 0) return "";
  std::vector<int> chain;  // innermost first
  for (int at = location; at >= 0 && chain.size() < 32; at = program.locations[at].inlined_at) chain.push_back(at);
  const auto name = [&](int at, bool whole_path) {
    const SourceLocation& place = program.locations[at];
    const std::string file = place.file < 0 ? "?" : program.files[place.file];
    return format("%s:%d", whole_path ? file.c_str() : file.c_str() + file.find_last_of('/') + 1, place.line);
  };
  std::string text = name(chain.back(), true);
  if (chain.size() == 1) return text;
  constexpr size_t kShown = 3;  // of the inlined levels, the innermost
  const size_t levels = chain.size() - 1;
  text += levels > kShown ? " (... > " : " (";
  for (size_t k = std::min(levels, kShown); k-- > 0;) text += name(chain[k], false) + (k ? " > " : ")");
  return text;
}

std::string describe_pc(const Program& program, int pc) {
  if (pc < 0 || pc >= int(program.code.size())) return "(unknown)";
  const Instruction& inst = program.code[pc];
  const std::string source = source_of(program, inst.location);
  return format("\"%.120s\"%s%s (PTX line %d)", inst.text, source.empty() ? "" : " at ", source.c_str(), inst.ptx_line);
}

static std::string where(const Warp& warp) {
  const u32* index = warp.cta->index;
  return format("cta(%u,%u,%u) warp %d", index[0], index[1], index[2], warp.id);
}

bool report_again(Warp& warp, const Instruction& inst, const char* kind) {
  Launch& launch = *warp.cta->launch;
  const auto known = launch.finding_index.find({kind, &inst});
  if (known == launch.finding_index.end()) return false;
  if (known->second < launch.findings.size()) launch.findings[known->second].count++;
  return true;
}

void report(Warp& warp, const Instruction& inst, const char* kind, const std::string& message) {
  constexpr size_t kMaxFindings = 200;
  Launch& launch = *warp.cta->launch;
  if (report_again(warp, inst, kind)) return;
  launch.finding_index[{kind, &inst}] = launch.findings.size();
  if (launch.findings.size() >= kMaxFindings) return;
  launch.findings.push_back({kind, message, where(warp), source_of(*launch.program, inst.location), inst.text,
                             inst.ptx_line, 1});
}

void fail(Warp& warp, const Instruction& inst, const char* kind, const std::string& message) {
  const std::string source = source_of(*warp.cta->launch->program, inst.location);
  throw EmulatorError(kind, format("%s: %s\n  at %s (PTX line %d), lanes %08x: %s", where(warp).c_str(), message.c_str(),
                                   source.empty() ? "unknown source line" : source.c_str(), inst.ptx_line, warp.mask,
                                   inst.text));
}

void require_defined(Warp& warp, const Instruction& inst, u32 undefined, const char* what) {
  undefined &= warp.mask;
  if (!undefined || !warp.cta->launch->options.check_undefined) return;
  report(warp, inst, "undefined",
         format("%s computed from data that was never written (lane %d)", what, __builtin_ctz(undefined)));
}

std::string Cluster::agent_name(Agent agent) const {
  const int kind = warp_count ? agent / warp_count : 0, warp = warp_count ? agent % warp_count : agent;
  const int per_cta = ctas.empty() ? warp_count : ctas.front()->warp_count;
  const std::string name = ctas.size() > 1 ? format("warp %d of CTA rank %d", warp % per_cta, warp / per_cta)
                                           : format("warp %d", warp);
  switch (kind) {
    case 0: return name;
    case 1: return "cp.async of " + name;
    case 2: return "wgmma of " + name;
    case 3: return "bulk store (read) of " + name;
    case 4: return "bulk store (write) of " + name;
    default: {
      const size_t k = agent - kAgentsPerWarp * warp_count;
      return "copies completing on " + (k < agent_names.size() ? agent_names[k] : std::string("an mbarrier"));
    }
  }
}

}  // namespace ptxemu

// Liveness and slot allocation: virtual registers that are never live together share a slot, which
// keeps the register file of a warp in the L1 cache. What is live at the entry may be read before it is
// written and starts undefined.
#include <algorithm>
#include <array>

#include "handlers.h"
#include "program.h"

namespace ptxemu {
namespace {

class BitSet {
 public:
  explicit BitSet(size_t bits = 0) : words_((bits + 63) / 64, 0) {}
  bool test(size_t k) const { return words_[k / 64] >> (k % 64) & 1; }
  void set(size_t k) { words_[k / 64] |= 1ull << (k % 64); }
  void reset(size_t k) { words_[k / 64] &= ~(1ull << (k % 64)); }
  bool merge(const BitSet& other) {
    u64 changed = 0;
    for (size_t k = 0; k < words_.size(); k++) {
      const u64 merged = words_[k] | other.words_[k];
      changed |= merged ^ words_[k];
      words_[k] = merged;
    }
    return changed != 0;
  }
  template <class F>
  void for_each(F visit) const {
    for (size_t k = 0; k < words_.size(); k++)
      for (u64 rest = words_[k]; rest; rest &= rest - 1) visit(k * 64 + __builtin_ctzll(rest));
  }

 private:
  std::vector<u64> words_;
};

struct Block {
  int begin = 0, end = 0;
  std::vector<int> successors;
  BitSet use, def, live_in, live_out, in_flight_in;
};

class Allocator {
 public:
  explicit Allocator(Program& program) : program_(program), registers_(program.register_class.size()) {}

  void run() {
    make_blocks();
    find_async_uses();
    find_liveness();
    find_intervals();
    assign_slots();
    rewrite();
  }

 private:
  void make_blocks() {
    auto& code = program_.code;
    std::vector<bool> leader(code.size() + 1, false);
    leader[0] = true;
    for (size_t pc = 0; pc < code.size(); pc++) {
      if (code[pc].is_branch) leader[code[pc].branch_target] = true;
      if (code[pc].is_branch || code[pc].is_exit) leader[pc + 1] = true;
    }
    std::vector<int> block_of(code.size() + 1, -1);
    for (size_t pc = 0; pc < code.size(); pc++) {
      if (leader[pc]) {
        blocks_.emplace_back();
        blocks_.back().begin = int(pc);
      }
      blocks_.back().end = int(pc) + 1;
      block_of[pc] = int(blocks_.size()) - 1;
    }
    for (Block& block : blocks_) {
      const Instruction& last = code[block.end - 1];
      if (last.is_branch) block.successors.push_back(block_of[last.branch_target]);
      const bool falls_through = !(last.is_branch || last.is_exit) || last.guard >= 0;
      if (falls_through && block.end < int(code.size())) block.successors.push_back(block_of[block.end]);
      for (BitSet* set : {&block.use, &block.def, &block.live_in, &block.live_out, &block.in_flight_in})
        *set = BitSet(registers_);
    }
  }

  static bool is_wait(const Instruction& inst) { return inst.handler == exec_wgmma_wait; }

  void add_wgmma_registers(const Instruction& inst, BitSet& into) const {
    for (size_t k = 0; k < inst.operands.size(); k++)
      if (int(k) < inst.definitions || (inst.a_from_registers && int(k) >= inst.a_begin && int(k) < inst.b_begin))
        into.set(inst.operands[k]);
  }

  /// Registers of a wgmma in flight stay in use until a wait that covers it.
  void find_async_uses() {
    async_uses_.resize(program_.code.size());
    if (!program_.wgmma_register_count) return;
    std::vector<int> work;
    std::vector<bool> visited(blocks_.size(), false);
    work.push_back(0);
    while (!work.empty()) {
      const int b = work.back();
      work.pop_back();
      visited[b] = true;
      BitSet in_flight = blocks_[b].in_flight_in;
      for (int pc = blocks_[b].begin; pc < blocks_[b].end; pc++) {
        const Instruction& inst = program_.code[pc];
        if (inst.handler == exec_wgmma) add_wgmma_registers(inst, in_flight);
        if (is_wait(inst)) {
          async_uses_[pc].clear();
          in_flight.for_each([&](size_t reg) { async_uses_[pc].push_back(int(reg)); });
          if (inst.immediate == 0 && inst.guard < 0) in_flight = BitSet(registers_);
        }
      }
      for (int next : blocks_[b].successors)
        if (blocks_[next].in_flight_in.merge(in_flight) || !visited[next]) work.push_back(next);
    }
  }

  void find_liveness() {
    for (Block& block : blocks_)
      for (int pc = block.begin; pc < block.end; pc++) {
        Instruction& inst = program_.code[pc];
        for_each_register(inst, [&](int& reg, bool, bool is_use) {
          if (is_use && !block.def.test(reg)) block.use.set(reg);
        });
        for (int reg : async_uses_[pc])
          if (!block.def.test(reg)) block.use.set(reg);
        if (inst.guard < 0)  // a guarded write leaves some lanes as they were
          for_each_register(inst, [&](int& reg, bool is_definition, bool) {
            if (is_definition) block.def.set(reg);
          });
      }
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t b = blocks_.size(); b-- > 0;) {
        Block& block = blocks_[b];
        for (int next : block.successors) changed |= block.live_out.merge(blocks_[next].live_in);
        BitSet in = block.use;
        block.live_out.for_each([&](size_t reg) {
          if (!block.def.test(reg)) in.set(reg);
        });
        changed |= block.live_in.merge(in);
      }
    }
  }

  void find_intervals() {
    first_.assign(registers_, -1);
    last_.assign(registers_, -1);
    const auto extend = [&](int reg, int pc) {
      if (first_[reg] < 0 || pc < first_[reg]) first_[reg] = pc;
      if (pc > last_[reg]) last_[reg] = pc;
    };
    for (Block& block : blocks_) {
      block.live_in.for_each([&](size_t reg) { extend(int(reg), block.begin); });
      block.live_out.for_each([&](size_t reg) { extend(int(reg), block.end); });
      for (int pc = block.begin; pc < block.end; pc++) {
        for_each_register(program_.code[pc], [&](int& reg, bool, bool) { extend(reg, pc); });
        for (int reg : async_uses_[pc]) extend(reg, pc);
      }
    }
  }

  int new_slot(RegClass cls) {
    const int offset = program_.register_bytes;
    program_.register_bytes += slot_bytes(cls);
    return offset;
  }

  void assign_slots() {
    slot_.assign(registers_, -1);
    // Constants and special registers hold for the whole kernel.
    for (ConstantSlot& c : program_.constants) slot_[c.slot.id] = new_slot(c.slot.cls);
    for (SpecialSlot& s : program_.specials) slot_[s.slot.id] = new_slot(s.slot.cls);

    std::vector<int> order;
    for (size_t reg = 0; reg < registers_; reg++)
      if (first_[reg] >= 0 && slot_[reg] < 0) order.push_back(int(reg));
    std::sort(order.begin(), order.end(), [&](int a, int b) { return first_[a] < first_[b]; });
    std::vector<std::vector<int>> ending(program_.code.size() + 2);
    std::array<std::vector<int>, 5> free_slots;  // by class size: Pred and B16 share
    const auto pool = [](RegClass cls) { return cls == RegClass::Pred ? int(RegClass::B16) : int(cls); };
    int freed_to = 0;  // slots of intervals that end before this pc are free
    for (int reg : order) {
      // An interval that ends where this one begins may not be reused: a handler may write its
      // destination before it has read all its sources.
      for (; freed_to < first_[reg]; freed_to++)
        for (int done : ending[freed_to])
          free_slots[pool(program_.register_class[done])].push_back(slot_[done]);
      auto& candidates = free_slots[pool(program_.register_class[reg])];
      if (candidates.empty()) {
        slot_[reg] = new_slot(program_.register_class[reg]);
      } else {
        slot_[reg] = candidates.back();
        candidates.pop_back();
      }
      ending[last_[reg]].push_back(reg);
    }
    blocks_[0].live_in.for_each([&](size_t reg) {
      if (!is_permanent(int(reg))) program_.undefined_at_entry.push_back(slot_[reg]);
    });
  }

  bool is_permanent(int reg) const {
    for (const ConstantSlot& c : program_.constants)
      if (c.slot.id == reg) return true;
    for (const SpecialSlot& s : program_.specials)
      if (s.slot.id == reg) return true;
    return false;
  }

  void rewrite() {
    for (Instruction& inst : program_.code)
      for_each_register(inst, [&](int& reg, bool, bool) { reg = slot_[reg]; });
    for (ConstantSlot& c : program_.constants) c.slot.id = slot_[c.slot.id];
    for (SpecialSlot& s : program_.specials) s.slot.id = slot_[s.slot.id];
  }

  Program& program_;
  size_t registers_;
  std::vector<Block> blocks_;
  std::vector<std::vector<int>> async_uses_;
  std::vector<int> first_, last_, slot_;
};

}  // namespace

void allocate_registers(Program& program) { Allocator(program).run(); }

}  // namespace ptxemu

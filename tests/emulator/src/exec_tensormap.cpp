// Tensor maps: reading one for a copy, and building one on the device.
#include "handlers.h"
#include "memory.h"

namespace ptxemu {

const TensorMap& tensor_map_at(Warp& warp, const Instruction& inst, u64 address) {
  u64 relative = address;
  Launch& launch = *warp.cta->launch;
  const Space space = resolve_space(Space::Generic, relative);
  const u8* bytes;
  if (space == Space::Param) {
    if (relative + kTensorMapBytes > launch.params.size()) fail(warp, inst, "bounds", "tensor map behind the parameters");
    if (relative % 64) fail(warp, inst, "alignment", "tensor map not aligned to 64 bytes");
    bytes = &launch.params[relative];
  } else if (space == Space::Global) {
    locate_global(warp, inst, address, kTensorMapBytes, false, 64);
    bytes = reinterpret_cast<const u8*>(address);
  } else {
    fail(warp, inst, "tensor-map", "tensor map neither in global memory nor in the parameters");
  }
  const TensorMap& map = *reinterpret_cast<const TensorMap*>(bytes);
  if (map.magic != kTensorMapMagic) fail(warp, inst, "tensor-map", "no tensor map at the address given");
  if (const char* error = tensor_map_error(map)) fail(warp, inst, "tensor-map", error);

  // A map changed on the device must be acquired through the tensormap proxy.
  const auto changed = launch.map_versions.find(address);
  if (changed != launch.map_versions.end() && launch.options.check_proxies) {
    const auto& acquired = launch.map_acquires[address];
    bool ordered = acquired.version == changed->second;
    if (acquired.cluster == warp.cta->cluster->number) {
      ordered &= acquired.tick <= warp.view.seen.get(acquired.agent);
    } else {
      const auto& foreign = warp.view.foreign;
      const auto clock = foreign ? foreign->find(acquired.cluster) : ForeignClocks::const_iterator();
      ordered &= foreign && clock != foreign->end() && acquired.tick <= clock->second.get(acquired.agent);
    }
    if (!ordered)
      report(warp, inst, "proxy", "tensor map changed on the device and used without fence.proxy.tensormap acquire");
  }
  return map;
}

static u8 swizzle_mode(u64 mode) {  // PTX: 0 none, 1 32B, 2 64B, 3 128B
  static const u8 modes[] = {kSwizzleNone, kSwizzle32B, kSwizzle64B, kSwizzle128B};
  return mode < sizeof modes ? modes[mode] : u8(kSwizzleNone);
}

/// .elemtype is numbered differently from CUtensorMapDataType.
static u8 element_type(u64 value) {
  static const u8 types[] = {kElementU8,  kElementU16,    kElementU32, kElementS32,  kElementU64,  kElementS64,  kElementF16,
                             kElementF32, kElementF32Ftz, kElementF64, kElementBF16, kElementTF32, kElementTF32Ftz};
  return value < sizeof types ? types[value] : u8(kElementTypes);
}

/// operands: the value, unless it is in immediate.
void exec_tensormap_replace(Warp& warp, const Instruction& inst) {
  FOR_ACTIVE_LANES (warp, lane) {
    u64 address = lane_address(warp, inst.address, lane);
    const Space space = resolve_space(inst.space, address);
    u8* bytes;
    if (space == Space::Global) {
      bytes = write_global(warp, inst, address, kTensorMapBytes, 64, {});
      warp.cta->launch->map_versions[address]++;
    } else {
      bytes = write_shared(warp, inst, address, kTensorMapBytes, true);
    }
    TensorMap& map = *reinterpret_cast<TensorMap*>(bytes);
    u64 value = inst.immediate;
    if (!inst.operands.empty())
      value = inst.value64 ? lanes<u64>(warp, inst.operands[0])[lane] : lanes<u32>(warp, inst.operands[0])[lane];
    map.magic = kTensorMapMagic;
    switch (inst.field) {
      case TensorMapField::GlobalAddress: map.address = value; break;
      case TensorMapField::Rank: map.rank = value + 1; break;
      case TensorMapField::BoxDim: map.box[inst.ordinal] = value; break;
      case TensorMapField::GlobalDim: map.dim[inst.ordinal] = value; break;
      case TensorMapField::GlobalStride: map.stride[inst.ordinal] = value; break;
      case TensorMapField::ElementStride: map.element_stride[inst.ordinal] = value; break;
      case TensorMapField::ElementType:
        map.element_type = element_type(value);
        if (!map.element_bytes()) fail(warp, inst, "tensor-map", "unknown element type");
        break;
      case TensorMapField::InterleaveLayout:
        if (value) fail(warp, inst, "unsupported", "interleaved tensor map");
        break;
      case TensorMapField::SwizzleMode: map.swizzle = swizzle_mode(value); break;
      case TensorMapField::FillMode: map.fill_nan = value; break;
    }
  }
}

/// tensormap.cp_fenceproxy: address: global destination, address2: shared source. It releases the map.
void exec_tensormap_copy(Warp& warp, const Instruction& inst) {
  if (!require_full_warp(warp, inst)) return;
  const int lane = first_active_lane(warp);
  const u64 to = lane_address(warp, inst.address, lane);
  bool defined = true;
  const u8* from = read_shared(warp, inst, lane_address(warp, inst.address2, lane), kTensorMapBytes, defined);
  memcpy(write_global(warp, inst, to, kTensorMapBytes, 64, {}), from, kTensorMapBytes);
  if (!defined) report(warp, inst, "undefined", "tensor map copied from shared memory that was never written");
  warp.cta->launch->map_versions[to]++;
}

}  // namespace ptxemu

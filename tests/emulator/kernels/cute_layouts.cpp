// Prints what CuTe says about fragments and shared-memory tiles, for the emulator's layout test. Compiled by g++.
//
//   mma <name> <A|B|C> <index of (thread, value), threads outermost>
//   gmma <name> <descriptor> <element offset of (mn, k), mn outermost>   one 64 x 16 tile of 16-bit elements
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm89.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include <cstdio>

template <class Layout>
void dump_fragment(const char* name, const char* which, Layout layout) {
  printf("mma %s %s", name, which);
  for (int t = 0; t < cute::size<0>(layout); t++)
    for (int v = 0; v < cute::size<1>(layout); v++) printf(" %d", int(layout(t, v)));
  printf("\n");
}

template <class Atom>
void dump_mma(const char* name) {
  using Traits = cute::MMA_Traits<Atom>;
  dump_fragment(name, "A", typename Traits::ALayout{});
  dump_fragment(name, "B", typename Traits::BLayout{});
  dump_fragment(name, "C", typename Traits::CLayout{});
}

template <cute::SM90::GMMA::Major kMajor, class Atom>
void dump_gmma(const char* name, Atom atom) {
  using namespace cute;
  const auto layout = tile_to_shape(atom, Shape<_64, _64>{});
  const auto tensor = make_tensor(make_smem_ptr(static_cast<half_t*>(nullptr)), layout);
  const auto tile = local_tile(tensor, Shape<_64, _16>{}, make_coord(0, 0));
  const auto descriptor = SM90::GMMA::make_gmma_desc<kMajor>(tile);
  printf("\ngmma %s %llu", name, (unsigned long long)descriptor.desc_);
  const auto offsets = as_position_independent_swizzle_layout(layout);  // swizzle in elements, not in bytes
  for (int mn = 0; mn < 64; mn++)
    for (int k = 0; k < 16; k++) printf(" %d", int(offsets(mn, k)));
  printf("\n");
}

int main() {
  using namespace cute;
  using namespace cute::SM90::GMMA;
  dump_mma<SM80_16x8x8_F32F16F16F32_TN>("m16n8k8.f16");
  dump_mma<SM80_16x8x16_F32F16F16F32_TN>("m16n8k16.f16");
  dump_mma<SM80_16x8x16_F32BF16BF16F32_TN>("m16n8k16.bf16");
  dump_mma<SM80_16x8x4_F32TF32TF32F32_TN>("m16n8k4.tf32");
  dump_mma<SM80_16x8x8_F32TF32TF32F32_TN>("m16n8k8.tf32");
  dump_mma<SM80_16x8x16_S32S8S8S32_TN>("m16n8k16.s8");
  dump_mma<SM80_16x8x32_S32S8S8S32_TN>("m16n8k32.s8");
  dump_mma<SM80_16x8x32_S32U8U8S32_TN>("m16n8k32.u8");
  dump_mma<SM89_16x8x32_F32E4M3E4M3F32_TN>("m16n8k32.e4m3");
  dump_mma<SM89_16x8x32_F32E5M2E5M2F32_TN>("m16n8k32.e5m2");
  dump_gmma<Major::K>("K none", Layout_K_INTER_Atom<half_t>{});
  dump_gmma<Major::K>("K 32B", Layout_K_SW32_Atom<half_t>{});
  dump_gmma<Major::K>("K 64B", Layout_K_SW64_Atom<half_t>{});
  dump_gmma<Major::K>("K 128B", Layout_K_SW128_Atom<half_t>{});
  dump_gmma<Major::MN>("MN none", Layout_MN_INTER_Atom<half_t>{});
  dump_gmma<Major::MN>("MN 32B", Layout_MN_SW32_Atom<half_t>{});
  dump_gmma<Major::MN>("MN 64B", Layout_MN_SW64_Atom<half_t>{});
  dump_gmma<Major::MN>("MN 128B", Layout_MN_SW128_Atom<half_t>{});
  return 0;
}

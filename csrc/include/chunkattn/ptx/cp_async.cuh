// Copies from global to shared memory that run beside the arithmetic (sm_80).
#pragma once
#include <cstdint>

namespace chunkattn::ptx {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies `valid` of kBytes bytes and fills the rest with zeros; with valid = 0 nothing is read. 16-byte copies bypass
// L1, which keeps it for page tables and scales.
template <int kBytes>
__device__ inline void cp_async(uint32_t target, const void* source, int valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(valid) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(kBytes), "r"(valid)
                 : "memory");
}

// Copies 16 bytes or, where `skips`, reads nothing and writes zeros.
__device__ inline void cp_async_unless(bool skips, uint32_t target, const void* source) {
  asm volatile(
      "{\n"
      ".reg .pred skips;\n"
      "setp.ne.s32 skips, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, skips;\n"
      "}" ::"r"(target),
      "l"(source), "r"(static_cast<int32_t>(skips))
      : "memory");
}

// Some threads copy 4 bytes or, where `skips`, read nothing and write zeros; without a branch.
__device__ inline void cp_async_word_if(bool copies, bool skips, uint32_t target, const void* source) {
  asm volatile(
      "{\n"
      ".reg .pred copies, skips;\n"
      "setp.ne.s32 copies, %0, 0;\n"
      "setp.ne.s32 skips, %1, 0;\n"
      "@copies cp.async.ca.shared.global [%2], [%3], 4, skips;\n"
      "}" ::"r"(static_cast<int32_t>(copies)),
      "r"(static_cast<int32_t>(skips)), "r"(target), "l"(source)
      : "memory");
}

__device__ inline void store_shared(uint32_t target, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(target), "r"(word) : "memory");
}
__device__ inline void store_shared(uint32_t target, uint4 words) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(words.x), "r"(words.y), "r"(words.z),
               "r"(words.w)
               : "memory");
}
__device__ inline uint4 load_shared(uint32_t source) {
  uint4 words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(source)
               : "memory");
  return words;
}

// The same for some threads, without a branch.
__device__ inline void store_shared_if(bool stores, uint32_t target, uint32_t word) {
  asm volatile(
      "{\n"
      ".reg .pred stores;\n"
      "setp.ne.s32 stores, %0, 0;\n"
      "@stores st.shared.b32 [%1], %2;\n"
      "}" ::"r"(static_cast<int32_t>(stores)),
      "r"(target), "r"(word)
      : "memory");
}

__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace chunkattn::ptx

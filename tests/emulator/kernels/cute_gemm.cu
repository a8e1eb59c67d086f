// One of CuTe's tutorials as a library: C = A * B in half precision through the tutorial's own host code.
// TUTORIAL names the source file; its main() is set aside.
#define main tutorial_main
#include TUTORIAL
#undef main

extern "C" int gemm_half(char trans_a, char trans_b, int m, int n, int k, const void* a, int lda, const void* b, int ldb,
                         void* c, int ldc) {
  using T = cute::half_t;
  gemm(trans_a, trans_b, m, n, k, T(1.0f), static_cast<const T*>(a), lda, static_cast<const T*>(b), ldb, T(0.0f),
       static_cast<T*>(c), ldc);
  return int(cudaGetLastError());
}

// AVX-512 with BF16: an instruction multiplies 16 pairs of bf16 and adds both products.
#include "level.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET \
  __attribute__((target( \
      "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,prefer-vector-width=512")))

namespace cadenza {
namespace {

#include "elementwise.h"

struct Bfloat16 {
  using Sum = float;
  using Sums = __m512;
  static constexpr int64_t kSize = 2, kStep = 2;

  template <int ROWS, int HALVES>
  TARGET static void step(
      const char* x, int64_t x_stride, const char* const (&halves)[HALVES], int64_t at,
      __m512 (&sums)[ROWS][HALVES]) {
    __m512bh weights[HALVES];
    EACH(i, HALVES)
      weights[i] = (__m512bh)_mm512_loadu_si512(halves[i] + at);
    EACH(row, ROWS) {
      const int32_t pair = pair_at(x + row * x_stride);
      const auto value = (__m512bh)_mm512_set1_epi32(pair);
      EACH(i, HALVES)
        sums[row][i] = _mm512_dpbf16_ps(sums[row][i], weights[i], value);
    }
  }
};

#include "avx512_tile.h"

}  // namespace

const Level* avx512_bf16_level() {
  static const Level level{
      "avx512-bf16",
      {avx512_level()->kernels[kFloat32],
       {kNarrowRows, kWideRows, tile<Bfloat16>},
       avx512_vnni_level()->kernels[kInt8]},
      {},
      kElementwise,
  };
  return &level;
}

}  // namespace cadenza

#else

namespace cadenza {
const Level* avx512_bf16_level() { return nullptr; }
}  // namespace cadenza

#endif

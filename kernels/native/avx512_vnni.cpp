// AVX-512 with VNNI: an instruction multiplies 16 fours of bytes and adds the products.
#include "level.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET \
  __attribute__((target( \
      "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,prefer-vector-width=512")))

namespace cadenza {
namespace {

#include "elementwise.h"

struct Int8 {
  using Sum = int32_t;
  using Sums = __m512i;
  static constexpr int64_t kSize = 1, kStep = 4;

  template <int ROWS, int HALVES>
  TARGET static void step(
      const char* x, int64_t x_stride, const char* const (&halves)[HALVES], int64_t at,
      __m512i (&sums)[ROWS][HALVES]) {
    __m512i weights[HALVES];
    EACH(i, HALVES)
      weights[i] = _mm512_loadu_si512(halves[i] + at);
    EACH(row, ROWS) {
      const __m512i value = _mm512_set1_epi32(pair_at(x + row * x_stride));
      EACH(i, HALVES)
        sums[row][i] = _mm512_dpbusd_epi32(sums[row][i], value, weights[i]);
    }
  }
};

#include "avx512_tile.h"

}  // namespace

const Level* avx512_vnni_level() {
  static const Level level{
      "avx512-vnni",
      {avx512_level()->kernels[kFloat32],
       avx512_level()->kernels[kBfloat16],
       {kNarrowRows, kWideRows, tile<Int8>}},
      {},
      kElementwise,
  };
  return &level;
}

}  // namespace cadenza

#else

namespace cadenza {
const Level* avx512_vnni_level() { return nullptr; }
}  // namespace cadenza

#endif

// AVX-512: bf16 weights are widened to fp32, two fused multiply-adds a pair of inputs; int8 ones to 16
// bits.
#include "level.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET \
  __attribute__((target( \
      "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")))

namespace cadenza {
namespace {

#include "elementwise.h"

// The first or second bf16 of each pair, as fp32.
TARGET inline __m512 widened(__m512i pairs, int half) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm512_castsi512_ps(half ? _mm512_and_si512(pairs, high) : _mm512_slli_epi32(pairs, 16));
}

struct Float32 {
  using Sum = float;
  using Sums = __m512;
  static constexpr int64_t kSize = 4, kStep = 1;  // bytes a value, inputs a step

  template <int ROWS, int HALVES>
  TARGET static void step(
      const char* x, int64_t x_stride, const char* const (&halves)[HALVES], int64_t at,
      __m512 (&sums)[ROWS][HALVES]) {
    __m512 weights[HALVES];
    EACH(i, HALVES)
      weights[i] = _mm512_loadu_ps(halves[i] + at);
    EACH(row, ROWS) {
      const __m512 value = _mm512_set1_ps(*reinterpret_cast<const float*>(x + row * x_stride));
      EACH(i, HALVES)
        sums[row][i] = _mm512_fmadd_ps(weights[i], value, sums[row][i]);
    }
  }
};

struct Bfloat16 {
  using Sum = float;
  using Sums = __m512;
  static constexpr int64_t kSize = 2, kStep = 2;

  template <int ROWS, int HALVES>
  TARGET static void step(
      const char* x, int64_t x_stride, const char* const (&halves)[HALVES], int64_t at,
      __m512 (&sums)[ROWS][HALVES]) {
    // the first input of each pair before the second: so the sums and one half fit the registers
    EACH(half, 2) {
      __m512 weights[HALVES];
      EACH(i, HALVES)
        weights[i] = widened(_mm512_loadu_si512(halves[i] + at), half);
      EACH(row, ROWS) {
        const int32_t pair = pair_at(x + row * x_stride);
        const __m512 value = widened(_mm512_set1_epi32(pair), half);
        EACH(i, HALVES)
          sums[row][i] = _mm512_fmadd_ps(weights[i], value, sums[row][i]);
      }
    }
  }
};

// The first and third of each four bytes, or the second and fourth, as 16 bits.
TARGET inline __m512i codes_at(__m512i fours, int half) {
  return half ? _mm512_srai_epi16(fours, 8) : _mm512_srai_epi16(_mm512_slli_epi16(fours, 8), 8);
}

TARGET inline __m512i inputs_at(__m512i fours, int half) {
  return half ? _mm512_srli_epi16(fours, 8) : _mm512_and_si512(fours, _mm512_set1_epi16(0xff));
}

struct Int8 {
  using Sum = int32_t;
  using Sums = __m512i;
  static constexpr int64_t kSize = 1, kStep = 4;

  template <int ROWS, int HALVES>
  TARGET static void step(
      const char* x, int64_t x_stride, const char* const (&halves)[HALVES], int64_t at,
      __m512i (&sums)[ROWS][HALVES]) {
    EACH(half, 2) {
      __m512i weights[HALVES];
      EACH(i, HALVES)
        weights[i] = codes_at(_mm512_loadu_si512(halves[i] + at), half);
      EACH(row, ROWS) {
        const __m512i fours = _mm512_set1_epi32(pair_at(x + row * x_stride));
        const __m512i value = inputs_at(fours, half);
        EACH(i, HALVES)
          sums[row][i] = _mm512_add_epi32(sums[row][i], _mm512_madd_epi16(weights[i], value));
      }
    }
  }
};

#include "avx512_tile.h"

constexpr Level kLevel{
    "avx512",
    {{kNarrowRows, kWideRows, tile<Float32>},
     {kNarrowRows, kWideRows, tile<Bfloat16>},
     {kNarrowRows, kWideRows, tile<Int8>}},
    {},
    kElementwise,
};

}  // namespace

const Level* avx512_level() { return &kLevel; }

}  // namespace cadenza

#else

namespace cadenza {
const Level* avx512_level() { return nullptr; }
}  // namespace cadenza

#endif

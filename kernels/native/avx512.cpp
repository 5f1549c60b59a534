// AVX-512: bf16 weights are widened to fp32, two fused multiply-adds a pair of inputs.
#include "linear.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))

namespace cadenza {
namespace {

// The first or second bf16 of each pair, as fp32.
TARGET inline __m512 widened(__m512i pairs, int half) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm512_castsi512_ps(half ? _mm512_and_si512(pairs, high) : _mm512_slli_epi32(pairs, 16));
}

TARGET inline __m256i rounded(__m512 sums) {
  const __m512i bits = _mm512_castps_si512(sums);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(sums, sums, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_mask_mov_epi32(_mm512_srli_epi32(nearest, 16), is_nan, _mm512_set1_epi32(0x7fc0)));
}

struct Float32 {
  static constexpr int64_t kSize = 4, kStep = 1;  // bytes a value, inputs a step

  template <int ROWS, int PANELS>
  TARGET static void step(
      const char* x, int64_t x_stride, const char* weight, int64_t panel_bytes,
      __m512 (&sums)[ROWS][2 * PANELS]) {
    __m512 weights[2 * PANELS];
    EACH(i, 2 * PANELS)
      weights[i] = _mm512_loadu_ps(weight + i / 2 * panel_bytes + i % 2 * 64);
    EACH(row, ROWS) {
      const __m512 value = _mm512_set1_ps(*reinterpret_cast<const float*>(x + row * x_stride));
      EACH(i, 2 * PANELS)
        sums[row][i] = _mm512_fmadd_ps(weights[i], value, sums[row][i]);
    }
  }

  TARGET static void store(char* y, __m512 sums, int64_t outputs) {
    _mm512_mask_storeu_ps(y, static_cast<__mmask16>((1u << outputs) - 1), sums);
  }
};

struct Bfloat16 {
  static constexpr int64_t kSize = 2, kStep = 2;

  template <int ROWS, int PANELS>
  TARGET static void step(
      const char* x, int64_t x_stride, const char* weight, int64_t panel_bytes,
      __m512 (&sums)[ROWS][2 * PANELS]) {
    // the first input of each pair before the second: so the sums and one half fit the registers
    EACH(half, 2) {
      __m512 weights[2 * PANELS];
      EACH(i, 2 * PANELS)
        weights[i] = widened(_mm512_loadu_si512(weight + i / 2 * panel_bytes + i % 2 * 64), half);
      EACH(row, ROWS) {
        const auto pair = *reinterpret_cast<const int32_t*>(x + row * x_stride);
        const __m512 value = widened(_mm512_set1_epi32(pair), half);
        EACH(i, 2 * PANELS)
          sums[row][i] = _mm512_fmadd_ps(weights[i], value, sums[row][i]);
      }
    }
  }

  TARGET static void store(char* y, __m512 sums, int64_t outputs) {
    _mm256_mask_storeu_epi16(y, static_cast<__mmask16>((1u << outputs) - 1), rounded(sums));
  }
};

#include "avx512_tile.h"

constexpr Level kLevel{
    "avx512",
    {{kNarrowRows, kWideRows, 1, tile<Float32>}, {kNarrowRows, kWideRows, 2, tile<Bfloat16>}},
};

}  // namespace

const Level* avx512_level() { return &kLevel; }

}  // namespace cadenza

#else

namespace cadenza {
const Level* avx512_level() { return nullptr; }
}  // namespace cadenza

#endif

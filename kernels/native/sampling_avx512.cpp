// Sampling with AVX-512: sixteen values are one register.
#include "sampling.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cmath>

#include "contest.h"
#include "level.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))

namespace cadenza {
namespace {

struct Floats { __m512 all; };
struct Ints { __m512i all; };
struct Longs { __m512i all; };
struct Doubles { __m512d low, high; };
using Mask = uint32_t;

TARGET inline Floats load(const float* from) { return {_mm512_loadu_ps(from)}; }
TARGET inline Ints load_ints(const int32_t* from) { return {_mm512_loadu_si512(from)}; }
TARGET inline Longs load_longs(const uint64_t* from) { return {_mm512_loadu_si512(from)}; }
TARGET inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a.all); }
TARGET inline void store_ints(int32_t* to, Ints a) { _mm512_storeu_si512(to, a.all); }

TARGET inline Floats broadcast(float value) { return {_mm512_set1_ps(value)}; }
TARGET inline Ints all_ints(int32_t value) { return {_mm512_set1_epi32(value)}; }
TARGET inline Longs all_longs(uint64_t value) {
  return {_mm512_set1_epi64(static_cast<int64_t>(value))};
}
TARGET inline Ints numbers() {
  return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}

TARGET inline Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.all, b.all)}; }
TARGET inline Floats subtract(Floats a, Floats b) { return {_mm512_sub_ps(a.all, b.all)}; }
TARGET inline Floats multiply(Floats a, Floats b) { return {_mm512_mul_ps(a.all, b.all)}; }
TARGET inline Floats divide(Floats a, Floats b) { return {_mm512_div_ps(a.all, b.all)}; }
TARGET inline Floats multiply_add(Floats a, Floats b, Floats c) {
  return {_mm512_fmadd_ps(a.all, b.all, c.all)};
}
TARGET inline Floats larger(Floats a, Floats b) { return {_mm512_max_ps(a.all, b.all)}; }
TARGET inline Floats where(Mask mask, Floats a) {
  return {_mm512_maskz_mov_ps(static_cast<__mmask16>(mask), a.all)};
}

TARGET inline Mask above(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a.all, b.all, _CMP_GT_OQ);
}
TARGET inline Mask at_least(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a.all, b.all, _CMP_GE_OQ);
}
TARGET inline Mask is_nan(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a.all, b.all, _CMP_UNORD_Q);
}

TARGET inline Ints bits_of(Floats a) { return {_mm512_castps_si512(a.all)}; }
TARGET inline Floats as_floats(Ints a) { return {_mm512_castsi512_ps(a.all)}; }
TARGET inline Longs as_longs(Ints a) { return {a.all}; }
TARGET inline Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.all)}; }

TARGET inline Ints add_ints(Ints a, Ints b) { return {_mm512_add_epi32(a.all, b.all)}; }
TARGET inline Ints halved(Ints a) { return {_mm512_srli_epi32(a.all, 1)}; }
TARGET inline Ints quartered(Ints a) { return {_mm512_srli_epi32(a.all, 2)}; }
TARGET inline Ints shifted_by_23(Ints a) { return {_mm512_slli_epi32(a.all, 23)}; }

TARGET inline Longs add_longs(Longs a, Longs b) { return {_mm512_add_epi64(a.all, b.all)}; }
TARGET inline Longs product(Longs a, Longs b) { return {_mm512_mul_epu32(a.all, b.all)}; }
TARGET inline Longs high(Longs a) { return {_mm512_srli_epi64(a.all, 32)}; }
TARGET inline Longs exclusive(Longs a, Longs b, Longs c) {
  return {_mm512_ternarylogic_epi64(a.all, b.all, c.all, 0x96)};
}
TARGET inline Ints merged(Longs even, Longs odd) {
  return {_mm512_castps_si512(_mm512_mask_moveldup_ps(
      _mm512_castsi512_ps(even.all), 0xaaaa, _mm512_castsi512_ps(odd.all)))};
}

TARGET inline Ints chosen(Ints which, const Ints (&words)[4]) {
  const __mmask16 odd = _mm512_test_epi32_mask(which.all, _mm512_set1_epi32(1));
  const __mmask16 upper = _mm512_test_epi32_mask(which.all, _mm512_set1_epi32(2));
  return {_mm512_mask_blend_epi32(upper, _mm512_mask_blend_epi32(odd, words[0].all, words[1].all),
                                  _mm512_mask_blend_epi32(odd, words[2].all, words[3].all))};
}

TARGET inline void transpose(Floats (&rows)[4]) {
  const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(rows[0].all, rows[1].all));
  const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(rows[0].all, rows[1].all));
  const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(rows[2].all, rows[3].all));
  const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(rows[2].all, rows[3].all));
  rows[0].all = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
  rows[1].all = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
  rows[2].all = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
  rows[3].all = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
}

// A whole register is written: storing only the lanes of a mask is slow on some machines.
TARGET inline void compress(Floats a, Mask mask, float* to) {
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), a.all));
}

TARGET inline Doubles no_doubles() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
TARGET inline void accumulate(Doubles& sums, Floats a) {
  sums.low = _mm512_add_pd(sums.low, _mm512_cvtps_pd(_mm512_castps512_ps256(a.all)));
  sums.high = _mm512_add_pd(sums.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.all, 1)));
}
TARGET inline double sum_of(Doubles sums) {
  double lanes[kLanes], sum = 0.0;
  _mm512_storeu_pd(lanes, sums.low);
  _mm512_storeu_pd(lanes + 8, sums.high);
  for (double lane : lanes) sum += lane;
  return sum;
}

#include "sampling_passes.h"

}  // namespace

const Passes* avx512_passes() { return &kPasses; }

}  // namespace cadenza

#else

namespace cadenza {
const Passes* avx512_passes() { return nullptr; }
}  // namespace cadenza

#endif

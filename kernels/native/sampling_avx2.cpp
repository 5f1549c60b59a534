// Sampling with AVX2: sixteen values are two registers.
#include "sampling.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cmath>

#include "contest.h"
#include "level.h"

#define TARGET __attribute__((target("avx2,fma")))

namespace cadenza {
namespace {

struct Floats { __m256 low, high; };
struct Ints { __m256i low, high; };
struct Longs { __m256i low, high; };
struct Doubles { __m256d quarters[4]; };
using Mask = uint32_t;

TARGET inline Floats load(const float* from) {
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
TARGET inline __m256i load_register(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
TARGET inline Ints load_ints(const int32_t* from) {
  return {load_register(from), load_register(from + 8)};
}
TARGET inline Longs load_longs(const uint64_t* from) {
  return {load_register(from), load_register(from + 4)};
}
TARGET inline void store(float* to, Floats a) {
  _mm256_storeu_ps(to, a.low);
  _mm256_storeu_ps(to + 8, a.high);
}
TARGET inline void store_ints(int32_t* to, Ints a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), a.high);
}

TARGET inline Floats broadcast(float value) {
  return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
}
TARGET inline Ints all_ints(int32_t value) {
  return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)};
}
TARGET inline Longs all_longs(uint64_t value) {
  const __m256i all = _mm256_set1_epi64x(static_cast<int64_t>(value));
  return {all, all};
}
TARGET inline Ints numbers() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
          _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

TARGET inline Floats add(Floats a, Floats b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
TARGET inline Floats subtract(Floats a, Floats b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
TARGET inline Floats multiply(Floats a, Floats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
TARGET inline Floats divide(Floats a, Floats b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
TARGET inline Floats multiply_add(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
TARGET inline Floats larger(Floats a, Floats b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

TARGET inline Mask mask_of(__m256 low, __m256 high) {
  return static_cast<Mask>(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8);
}
TARGET inline Mask above(Floats a, Floats b) {
  return mask_of(_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ));
}
TARGET inline Mask at_least(Floats a, Floats b) {
  return mask_of(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ));
}
TARGET inline Mask is_nan(Floats a, Floats b) {
  return mask_of(_mm256_cmp_ps(a.low, b.low, _CMP_UNORD_Q),
                 _mm256_cmp_ps(a.high, b.high, _CMP_UNORD_Q));
}

TARGET inline Ints bits_of(Floats a) {
  return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)};
}
TARGET inline Floats as_floats(Ints a) {
  return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)};
}
TARGET inline Longs as_longs(Ints a) { return {a.low, a.high}; }
TARGET inline Floats to_floats(Ints a) {
  return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}

TARGET inline Ints add_ints(Ints a, Ints b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
TARGET inline Ints halved(Ints a) {
  return {_mm256_srli_epi32(a.low, 1), _mm256_srli_epi32(a.high, 1)};
}
TARGET inline Ints quartered(Ints a) {
  return {_mm256_srli_epi32(a.low, 2), _mm256_srli_epi32(a.high, 2)};
}
TARGET inline Ints shifted_by_23(Ints a) {
  return {_mm256_slli_epi32(a.low, 23), _mm256_slli_epi32(a.high, 23)};
}

TARGET inline Floats where(Mask mask, Floats a) {
  const Ints bits{_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128),
                  _mm256_setr_epi32(256, 512, 1024, 2048, 4096, 8192, 16384, 32768)};
  const __m256i all = _mm256_set1_epi32(static_cast<int>(mask));
  const __m256i low = _mm256_cmpeq_epi32(_mm256_and_si256(all, bits.low), bits.low);
  const __m256i high = _mm256_cmpeq_epi32(_mm256_and_si256(all, bits.high), bits.high);
  return {_mm256_and_ps(a.low, _mm256_castsi256_ps(low)),
          _mm256_and_ps(a.high, _mm256_castsi256_ps(high))};
}

TARGET inline Longs add_longs(Longs a, Longs b) {
  return {_mm256_add_epi64(a.low, b.low), _mm256_add_epi64(a.high, b.high)};
}
TARGET inline Longs product(Longs a, Longs b) {
  return {_mm256_mul_epu32(a.low, b.low), _mm256_mul_epu32(a.high, b.high)};
}
TARGET inline Longs high(Longs a) {
  return {_mm256_srli_epi64(a.low, 32), _mm256_srli_epi64(a.high, 32)};
}
TARGET inline Longs exclusive(Longs a, Longs b, Longs c) {
  return {_mm256_xor_si256(_mm256_xor_si256(a.low, b.low), c.low),
          _mm256_xor_si256(_mm256_xor_si256(a.high, b.high), c.high)};
}
TARGET inline __m256i merged_register(__m256i even, __m256i odd) {
  return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
TARGET inline Ints merged(Longs even, Longs odd) {
  return {merged_register(even.low, odd.low), merged_register(even.high, odd.high)};
}

TARGET inline __m256i chosen_register(
    __m256i which, __m256i first, __m256i second, __m256i third, __m256i fourth) {
  const __m256 odd = _mm256_castsi256_ps(_mm256_slli_epi32(which, 31));
  const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(which, 30));
  const __m256 low =
      _mm256_blendv_ps(_mm256_castsi256_ps(first), _mm256_castsi256_ps(second), odd);
  const __m256 high =
      _mm256_blendv_ps(_mm256_castsi256_ps(third), _mm256_castsi256_ps(fourth), odd);
  return _mm256_castps_si256(_mm256_blendv_ps(low, high, upper));
}
TARGET inline Ints chosen(Ints which, const Ints (&words)[4]) {
  return {chosen_register(which.low, words[0].low, words[1].low, words[2].low, words[3].low),
          chosen_register(which.high, words[0].high, words[1].high, words[2].high, words[3].high)};
}

TARGET inline void transpose_registers(__m256& first, __m256& second, __m256& third, __m256& fourth) {
  const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(first, second));
  const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(first, second));
  const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(third, fourth));
  const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(third, fourth));
  first = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
  second = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
  third = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
  fourth = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
}
TARGET inline void transpose(Floats (&rows)[4]) {
  transpose_registers(rows[0].low, rows[1].low, rows[2].low, rows[3].low);
  transpose_registers(rows[0].high, rows[1].high, rows[2].high, rows[3].high);
}

TARGET inline void compress(Floats a, Mask mask, float* to) {
  float lanes[kLanes];
  store(lanes, a);
  for (; mask; mask &= mask - 1) *to++ = lanes[__builtin_ctz(mask)];
}

TARGET inline Doubles no_doubles() {
  const __m256d zero = _mm256_setzero_pd();
  return {{zero, zero, zero, zero}};
}
TARGET inline void accumulate(Doubles& sums, Floats a) {
  const __m128 parts[] = {_mm256_castps256_ps128(a.low), _mm256_extractf128_ps(a.low, 1),
                          _mm256_castps256_ps128(a.high), _mm256_extractf128_ps(a.high, 1)};
  EACH(i, 4) sums.quarters[i] = _mm256_add_pd(sums.quarters[i], _mm256_cvtps_pd(parts[i]));
}
TARGET inline double sum_of(const Doubles& sums) {
  double lanes[kLanes], sum = 0.0;
  EACH(i, 4) _mm256_storeu_pd(lanes + 4 * i, sums.quarters[i]);
  for (double lane : lanes) sum += lane;
  return sum;
}

#include "sampling_passes.h"

}  // namespace

const Passes* avx2_passes() { return &kPasses; }

}  // namespace cadenza

#else

namespace cadenza {
const Passes* avx2_passes() { return nullptr; }
}  // namespace cadenza

#endif

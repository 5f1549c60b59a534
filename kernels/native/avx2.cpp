// AVX2 with fused multiply-adds: bf16 weights are widened to fp32, int8 ones to 16 bits.
#include "level.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma")))

namespace cadenza {
namespace {

#include "elementwise.h"

constexpr int64_t kRows = 3;      // of four registers each: 12 of 16 hold sums
constexpr int kVectors = 4;       // of 8 outputs, two a half

// The first or second bf16 of each pair, as fp32.
TARGET inline __m256 widened(__m256i pairs, int half) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm256_castsi256_ps(half ? _mm256_and_si256(pairs, high) : _mm256_slli_epi32(pairs, 16));
}

struct Float32 {
  using Value = float;
  using Sum = float;
  using Sums = __m256;
  static constexpr int64_t kStep = 1;  // inputs

  template <int ROWS>
  TARGET static void step(
      const char* x, int64_t x_stride, const char* const (&halves)[2], int64_t at,
      __m256 (&sums)[ROWS][kVectors]) {
    __m256 weights[kVectors];
    EACH(i, kVectors)
      weights[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(halves[i / 2] + at) + i % 2 * 8);
    EACH(row, ROWS) {
      const __m256 value =
          _mm256_broadcast_ss(reinterpret_cast<const float*>(x + row * x_stride));
      EACH(i, kVectors)
        sums[row][i] = _mm256_fmadd_ps(weights[i], value, sums[row][i]);
    }
  }
};

struct Bfloat16 {
  using Value = uint16_t;
  using Sum = float;
  using Sums = __m256;
  static constexpr int64_t kStep = 2;

  template <int ROWS>
  TARGET static void step(
      const char* x, int64_t x_stride, const char* const (&halves)[2], int64_t at,
      __m256 (&sums)[ROWS][kVectors]) {
    EACH(half, 2) {
      __m256 values[ROWS];
      EACH(row, ROWS) {
        const int32_t pair = pair_at(x + row * x_stride);
        values[row] = widened(_mm256_set1_epi32(pair), half);
      }
      EACH(i, kVectors) {
        const auto* pairs = reinterpret_cast<const __m256i*>(halves[i / 2] + at) + i % 2;
        const __m256 weights = widened(_mm256_loadu_si256(pairs), half);
        EACH(row, ROWS) sums[row][i] = _mm256_fmadd_ps(weights, values[row], sums[row][i]);
      }
    }
  }
};

// The first and third of each four bytes, or the second and fourth, as 16 bits.
TARGET inline __m256i codes_at(__m256i fours, int half) {
  return half ? _mm256_srai_epi16(fours, 8) : _mm256_srai_epi16(_mm256_slli_epi16(fours, 8), 8);
}

TARGET inline __m256i inputs_at(__m256i fours, int half) {
  return half ? _mm256_srli_epi16(fours, 8) : _mm256_and_si256(fours, _mm256_set1_epi16(0xff));
}

struct Int8 {
  using Value = uint8_t;
  using Sum = int32_t;
  using Sums = __m256i;
  static constexpr int64_t kStep = 4;

  template <int ROWS>
  TARGET static void step(
      const char* x, int64_t x_stride, const char* const (&halves)[2], int64_t at,
      __m256i (&sums)[ROWS][kVectors]) {
    EACH(half, 2) {
      __m256i values[ROWS];
      EACH(row, ROWS)
        values[row] = inputs_at(_mm256_set1_epi32(pair_at(x + row * x_stride)), half);
      EACH(i, kVectors) {
        const auto* fours = reinterpret_cast<const __m256i*>(halves[i / 2] + at) + i % 2;
        const __m256i weights = codes_at(_mm256_loadu_si256(fours), half);
        EACH(row, ROWS) {
          const __m256i products = _mm256_madd_epi16(weights, values[row]);
          sums[row][i] = _mm256_add_epi32(sums[row][i], products);
        }
      }
    }
  }
};

template <class Format, int ROWS>
TARGET void tile_of(const Tile& t) {
  typename Format::Sums sums[ROWS][kVectors];
  EACH(row, ROWS) EACH(i, kVectors) sums[row][i] = typename Format::Sums{};
  const char* const halves[2] = {t.halves[0], t.halves[1]};
  const char* x = t.x;
  const int64_t steps = t.depth / Format::kStep, bytes = steps * t.stride;
  Ahead ahead(t, steps);
  for (int64_t at = 0; at < bytes; at += t.stride) {
    ahead.fetch();
    Format::template step<ROWS>(x, t.x_stride, halves, at, sums);
    x += Format::kStep * sizeof(typename Format::Value);
  }
  alignas(32) typename Format::Sum results[ROWS][kPanel];
  EACH(row, ROWS) EACH(i, kVectors)
    __builtin_memcpy(&results[row][8 * i], &sums[row][i], sizeof sums[row][i]);
  finish(t, &results[0][0], kPanel);
}

template <class Format>
void tile(const Tile& t) {
  static constexpr TileFunction by_rows[] = {
      tile_of<Format, 1>, tile_of<Format, 2>, tile_of<Format, 3>};
  by_rows[t.rows - 1](t);
}

constexpr Level kLevel{
    "avx2",
    {{kRows, 0, tile<Float32>}, {kRows, 0, tile<Bfloat16>}, {kRows, 0, tile<Int8>}},
    {},
    kElementwise,
};

}  // namespace

const Level* avx2_level() { return &kLevel; }

}  // namespace cadenza

#else

namespace cadenza {
const Level* avx2_level() { return nullptr; }
}  // namespace cadenza

#endif

// Plain C++, for any machine. Sums of fp32 products, each product and each sum rounded; of int8 exact.
#include "level.h"

#define TARGET

namespace cadenza {
namespace {

#include "elementwise.h"

constexpr int64_t kRows = 4;

struct Float32 {
  using Sum = float;
  static constexpr int64_t kStep = 1;  // inputs that lie side by side
  static float weight(const char* outputs, int64_t, int64_t output) {
    return reinterpret_cast<const float*>(outputs)[output];
  }
  static float x(const char* row, int64_t input) {
    return reinterpret_cast<const float*>(row)[input];
  }
};

struct Bfloat16 {
  using Sum = float;
  static constexpr int64_t kStep = 2;
  static float weight(const char* outputs, int64_t input, int64_t output) {
    return from_bfloat16(
        reinterpret_cast<const uint16_t*>(outputs)[output * kStep + input % kStep]);
  }
  static float x(const char* row, int64_t input) {
    return from_bfloat16(reinterpret_cast<const uint16_t*>(row)[input]);
  }
};

struct Int8 {
  using Sum = int32_t;
  static constexpr int64_t kStep = 4;
  static int32_t weight(const char* outputs, int64_t input, int64_t output) {
    return reinterpret_cast<const int8_t*>(outputs)[output * kStep + input % kStep];
  }
  static int32_t x(const char* row, int64_t input) {
    return reinterpret_cast<const uint8_t*>(row)[input];
  }
};

template <class Format>
void tile(const Tile& t) {
  using Sum = typename Format::Sum;
  Sum sums[kRows][kPanel] = {};
  for (int64_t input = 0; input < t.depth; ++input) {
    Sum weights[kPanel];
    for (int64_t half = 0; half < 2; ++half) {
      const char* from = t.halves[half] + input / Format::kStep * t.stride;
      for (int64_t i = 0; i < kHalf; ++i)
        weights[half * kHalf + i] = Format::weight(from, input, i);
    }
    for (int64_t row = 0; row < t.rows; ++row) {
      const Sum x = Format::x(t.x + row * t.x_stride, input);
      for (int64_t i = 0; i < kPanel; ++i) sums[row][i] += weights[i] * x;
    }
  }
  finish(t, &sums[0][0], kPanel);
}

constexpr Level kLevel{
    "portable",
    {{kRows, 0, tile<Float32>}, {kRows, 0, tile<Bfloat16>}, {kRows, 0, tile<Int8>}},
    {},
    kElementwise,
};

}  // namespace

const Level* portable_level() { return &kLevel; }

}  // namespace cadenza

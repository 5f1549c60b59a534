// Plain C++, for any machine. Sums of fp32 products, each product and each sum rounded.
#include "level.h"

#define TARGET

namespace cadenza {
namespace {

#include "elementwise.h"

constexpr int64_t kRows = 4;

struct Float32 {
  using Value = float;
  static constexpr int64_t kStep = 1;  // inputs that lie side by side
  static float weight(const float* outputs, int64_t, int64_t output) { return outputs[output]; }
  static float x(const float* row, int64_t input) { return row[input]; }
};

struct Bfloat16 {
  using Value = uint16_t;
  static constexpr int64_t kStep = 2;
  static float weight(const uint16_t* outputs, int64_t input, int64_t output) {
    return from_bfloat16(outputs[output * kStep + input % kStep]);
  }
  static float x(const uint16_t* row, int64_t input) { return from_bfloat16(row[input]); }
};

template <class Format>
void tile(const Tile& t) {
  using Value = typename Format::Value;
  float sums[kRows][kPanel] = {};
  for (int64_t input = 0; input < t.depth; ++input) {
    float weights[kPanel];
    for (int64_t half = 0; half < 2; ++half) {
      const char* from = t.halves[half] + input / Format::kStep * t.stride;
      for (int64_t i = 0; i < kHalf; ++i)
        weights[half * kHalf + i] =
            Format::weight(reinterpret_cast<const Value*>(from), input, i);
    }
    for (int64_t row = 0; row < t.rows; ++row) {
      const auto* x_row = reinterpret_cast<const Value*>(t.x + row * t.x_stride);
      const float x = Format::x(x_row, input);
      for (int64_t i = 0; i < kPanel; ++i) sums[row][i] += weights[i] * x;
    }
  }
  finish(t, &sums[0][0], kPanel);
}

constexpr Level kLevel{
    "portable",
    {{kRows, 0, tile<Float32>}, {kRows, 0, tile<Bfloat16>}},
    {},
    kElementwise,
};

}  // namespace

const Level* portable_level() { return &kLevel; }

}  // namespace cadenza

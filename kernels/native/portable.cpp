// Plain C++, for any machine. Sums of fp32 products, each product and each sum rounded.
#include <cstring>

#include "linear.h"

namespace cadenza {
namespace {

constexpr int64_t kRows = 4;

float from_bfloat16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

struct Float32 {
  using Value = float;
  static float weight(const float* panel, int64_t input, int64_t output) {
    return panel[input * kPanel + output];
  }
  static float x(const float* row, int64_t input) { return row[input]; }
  static float result(float sum) { return sum; }
};

struct Bfloat16 {
  using Value = uint16_t;
  static float weight(const uint16_t* panel, int64_t input, int64_t output) {
    return from_bfloat16(panel[((input / 2) * kPanel + output) * 2 + input % 2]);
  }
  static float x(const uint16_t* row, int64_t input) { return from_bfloat16(row[input]); }
  static uint16_t result(float sum) { return to_bfloat16(sum); }
};

template <class Format>
void tile(const Tile& t) {
  using Value = typename Format::Value;
  const auto* panel = reinterpret_cast<const Value*>(t.weight);
  float sums[kRows][kPanel] = {};
  for (int64_t input = 0; input < t.depth; ++input) {
    float weights[kPanel];
    for (int64_t i = 0; i < kPanel; ++i) weights[i] = Format::weight(panel, input, i);
    for (int64_t row = 0; row < t.rows; ++row) {
      const auto* x_row = reinterpret_cast<const Value*>(t.x + row * t.x_stride);
      const float x = Format::x(x_row, input);
      for (int64_t i = 0; i < kPanel; ++i) sums[row][i] += weights[i] * x;
    }
  }
  for (int64_t row = 0; row < t.rows; ++row) {
    auto* y = reinterpret_cast<Value*>(t.y + row * t.y_stride);
    for (int64_t i = 0; i < t.outputs; ++i) y[i] = Format::result(sums[row][i]);
  }
}

constexpr Level kLevel{
    "portable",
    {{kRows, 0, 1, tile<Float32>}, {kRows, 0, 1, tile<Bfloat16>}},
};

}  // namespace

const Level* portable_level() { return &kLevel; }

}  // namespace cadenza

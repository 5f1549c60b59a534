// Weights in int8: quantised output by output, and packed panel by panel.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "pool.h"
#include "product.h"

namespace cadenza {
namespace {

constexpr int64_t kGroup = 4;  // inputs side by side
constexpr int64_t kAtOnce = 64;  // inputs, a number that compilers turn into vectors

float as_float(float value) { return value; }
float as_float(uint16_t bfloat) {
  const uint32_t bits = static_cast<uint32_t>(bfloat) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The largest magnitude; that of infinity or NaN where one is there.
template <class Value>
float largest_of(const Value* values, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float value = as_float(values[i]);
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  float value;
  std::memcpy(&value, &largest, sizeof value);
  return value;
}

int8_t code_of(float value) {
  constexpr float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float low = value < -127.0f ? -127.0f : value;
  const float shifted = (low > 127.0f ? 127.0f : low) + shift;
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  return static_cast<int8_t>(bits);
}

// The specification is kernels/quantised_linear/weights.py.
template <class Value>
struct Packing {
  const Value* weight;
  int64_t outputs, inputs;
  char* packed;
  std::atomic<bool> is_finite{true};

  void run(int64_t panel) {
    const int64_t bytes = panel_bytes(inputs, kInt8), depth = padded_depth(inputs, kInt8);
    char* to = packed + panel * bytes;
    std::memset(to, 0, static_cast<size_t>(bytes));
    PanelScales scales{};
    const int64_t count = std::min(kPanel, outputs - panel * kPanel);
    for (int64_t output = 0; output < count; ++output) {
      const Value* from = weight + (panel * kPanel + output) * inputs;
      const float largest = largest_of(from, inputs), scale = largest / 127.0f;
      if (!std::isfinite(largest)) is_finite.store(false, std::memory_order_relaxed);
      scales.scales[output] = scale > 0.0f ? scale : 1.0f;
      scales.offsets[output] = 128 * write(from, scales.scales[output], to + output * kGroup);
    }
    std::memcpy(to + depth * kPanel, &scales, sizeof scales);
  }

  // Returns the sum of an output's codes.
  int32_t write(const Value* from, float scale, char* to) const {
    int32_t sum = 0;
    for (int64_t first = 0; first < inputs; first += kAtOnce) {
      int8_t codes[kAtOnce] = {};
      const int64_t count = std::min(kAtOnce, inputs - first);
      for (int64_t i = 0; i < count; ++i) codes[i] = code_of(as_float(from[first + i]) / scale);
      for (int64_t i = 0; i < kAtOnce; ++i) sum += codes[i];
      for (int64_t i = 0; i < kAtOnce; i += kGroup, to += kPanel * kGroup)
        std::memcpy(to, codes + i, kGroup);
    }
    return sum;
  }
};

template <class Value>
bool pack_as(int32_t threads, const void* weight, int64_t outputs, int64_t inputs, void* packed) {
  Packing<Value> packing{static_cast<const Value*>(weight), outputs, inputs,
                         static_cast<char*>(packed)};
  run_tasks(
      threads, (outputs + kPanel - 1) / kPanel,
      [](void* context, int64_t panel, int64_t) {
        static_cast<Packing<Value>*>(context)->run(panel);
      },
      &packing);
  return packing.is_finite.load();
}

}  // namespace

bool pack_int8(int32_t threads, const void* weight, int64_t outputs, int64_t inputs, int32_t dtype,
               void* packed) {
  const auto pack = dtype == kBfloat16 ? pack_as<uint16_t> : pack_as<float>;
  return pack(threads, weight, outputs, inputs, packed);
}

}  // namespace cadenza

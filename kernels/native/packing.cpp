// Weights of fp32 and bf16, panel by panel.
#include <algorithm>
#include <cstring>

#include "pool.h"
#include "product.h"

namespace cadenza {
namespace {

template <class Value>
struct Packing {
  const Value* weight;
  int64_t outputs, inputs, depth;
  int64_t step;  // inputs side by side
  Value* packed;

  void run(int64_t panel) const {
    Value* to = packed + panel * kPanel * depth;
    std::memset(to, 0, static_cast<size_t>(kPanel * depth) * sizeof(Value));
    const int64_t count = std::min(kPanel, outputs - panel * kPanel);
    for (int64_t output = 0; output < count; ++output) {
      const Value* from = weight + (panel * kPanel + output) * inputs;
      for (int64_t input = 0; input < inputs; ++input)
        to[(input / step * kPanel + output) * step + input % step] = from[input];
    }
  }
};

template <class Value>
void pack_as(int32_t threads, const Packing<Value>& packing) {
  run_tasks(
      threads, (packing.outputs + kPanel - 1) / kPanel,
      [](void* context, int64_t panel, int64_t) {
        static_cast<const Packing<Value>*>(context)->run(panel);
      },
      const_cast<Packing<Value>*>(&packing));
}

}  // namespace

int64_t packed_bytes(int64_t outputs, int64_t inputs, int32_t dtype) {
  return (outputs + kPanel - 1) / kPanel * panel_bytes(inputs, dtype);
}

void pack(int32_t threads, const void* weight, int64_t outputs, int64_t inputs, int32_t dtype,
          void* packed) {
  const int64_t depth = padded_depth(inputs, dtype);
  if (dtype == kBfloat16)
    pack_as<uint16_t>(threads, {static_cast<const uint16_t*>(weight), outputs, inputs, depth, 2,
                                static_cast<uint16_t*>(packed)});
  else
    pack_as<float>(threads, {static_cast<const float*>(weight), outputs, inputs, depth, 1,
                             static_cast<float*>(packed)});
}

}  // namespace cadenza

// Weights of bf16 in 12 bits a value: see compact.h.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "pool.h"
#include "product.h"

namespace cadenza {
namespace {

constexpr int32_t kRest = 0x807f;  // all but the exponent

int32_t exponent(uint16_t value) { return value >> 7 & 0xff; }

bool is_stray(int32_t exponent, int32_t largest) {
  return exponent != 0 && largest - exponent > kFarthest;
}

// Whether there is room for all strays of each panel.
struct Counting {
  const uint16_t* weight;
  int64_t outputs, inputs;
  std::atomic<bool> fits{true};

  void run(int64_t index) {
    const CompactPanel panel(padded_depth(inputs, kCompactBfloat16));
    int64_t strays = 0;
    for (int64_t group = 0; group < panel.groups; ++group) {
      if (!fits.load(std::memory_order_relaxed)) return;
      strays += num_strays(index * kPanel, group * kGroupInputs);
      if (strays >= panel.num_strays()) fits.store(false, std::memory_order_relaxed);
    }
  }

  int64_t num_strays(int64_t output, int64_t input) const {
    const int64_t count = std::min(kPanel, outputs - output), width = std::min(kGroupInputs, inputs - input);
    const uint16_t* const first = weight + output * inputs + input;
    int32_t largest = 0;
    for (int64_t row = 0; row < count; ++row)
      for (int64_t i = 0; i < width; ++i) largest = std::max(largest, exponent(first[row * inputs + i]));
    int32_t strays = 0;
    for (int64_t row = 0; row < count; ++row)
      for (int64_t i = 0; i < width; ++i) strays += is_stray(exponent(first[row * inputs + i]), largest);
    return strays;
  }
};

struct Packing {
  const uint16_t* weight;
  int64_t outputs, inputs;
  char* packed;

  void run(int64_t index) const {
    const CompactPanel panel(padded_depth(inputs, kCompactBfloat16));
    char* to = packed + index * panel.bytes();
    std::memset(to, 0, static_cast<size_t>(panel.bytes()));
    auto* stray = reinterpret_cast<Stray*>(to + panel.strays());
    Stray* const last = stray + panel.num_strays() - 1;
    for (int64_t group = 0; group < panel.groups; ++group) {
      uint16_t values[kGroupValues] = {};
      take(index, group, values);
      const auto largest = largest_exponent(values);
      to[panel.largest() + group] = static_cast<char>(largest);
      write(values, largest, to + group * kGroupBytes);
      put_strays(values, largest, group, stray);
    }
    for (; stray <= last; ++stray) stray->place = kNoPlace;
  }

  // A group's values in the order of a plain panel: [inputs / 2][32][2].
  void take(int64_t panel, int64_t group, uint16_t* values) const {
    const int64_t first = group * kGroupInputs, count = std::min(kPanel, outputs - panel * kPanel);
    for (int64_t output = 0; output < count; ++output) {
      const uint16_t* from = weight + (panel * kPanel + output) * inputs + first;
      for (int64_t i = 0; i < std::min(kGroupInputs, inputs - first); ++i)
        values[(i / 2 * kPanel + output) * 2 + i % 2] = from[i];
    }
  }

  static int32_t largest_exponent(const uint16_t* values) {
    int32_t largest = 0;
    for (int64_t i = 0; i < kGroupValues; ++i) largest = std::max(largest, exponent(values[i]));
    return largest;
  }

  static void write(const uint16_t* values, int32_t largest, char* group) {
    uint16_t rests[kGroupValues / 2] = {}, codes[kGroupValues / 4] = {};
    for (int64_t vector = 0; vector < kGroupValues / kVector; ++vector)
      for (int64_t i = 0; i < kVector; ++i) {
        const uint16_t value = values[vector * kVector + i];
        const int32_t distance = exponent(value) == 0 ? kNoExponent : largest - exponent(value);
        const int32_t rest = value & kRest, swapped = (rest << 8 | rest >> 8) & 0xffff;
        rests[vector / 2 * kVector + i] |= static_cast<uint16_t>(vector % 2 == 0 ? swapped : rest);
        codes[vector / 4 * kVector + i] |= static_cast<uint16_t>((distance & 15) << vector % 4 * 4);
      }
    std::memcpy(group, rests, sizeof rests);
    std::memcpy(group + kRestsBytes, codes, sizeof codes);
  }

  static void put_strays(const uint16_t* values, int32_t largest, int64_t group, Stray*& next) {
    for (int64_t i = 0; i < kGroupValues; ++i)
      if (is_stray(exponent(values[i]), largest))
        *next++ = {static_cast<uint32_t>(group * kGroupValues + i), values[i], 0};
  }
};

template <class Task>
void run_panels(int32_t threads, Task* task) {
  run_tasks(
      threads, (task->outputs + kPanel - 1) / kPanel,
      [](void* context, int64_t panel, int64_t) { static_cast<Task*>(context)->run(panel); }, task);
}

}  // namespace

bool fits_compact(int32_t threads, const void* weight, int64_t outputs, int64_t inputs) {
  Counting counting{static_cast<const uint16_t*>(weight), outputs, inputs};
  run_panels(threads, &counting);
  return counting.fits.load();
}

void pack_compact(int32_t threads, const void* weight, int64_t outputs, int64_t inputs, void* packed) {
  Packing packing{static_cast<const uint16_t*>(weight), outputs, inputs, static_cast<char*>(packed)};
  run_panels(threads, &packing);
}

}  // namespace cadenza

// Weights of bf16 in 12 bits a value, of which nothing is lost.
//
// Steps that read all weights wait for memory. A bf16 is a sign, 8 bits of exponent and 7 of fraction,
// and of what lies side by side in a weight nearly all exponents are close below the largest. So a
// value keeps its sign and fraction, and how far below that its exponent is.
//
// A panel is cut into groups of 32 inputs, whose values are 32 vectors of 32, in the order of a plain
// panel. A group has
//   rests  [16][32] of 16 bits: signs and fractions, of vectors 1, 3, 5, ... where a bf16 has them; of
//          vectors 0, 2, 4, ... between those, as a bf16 whose bytes have changed places has them,
//   codes  [8][32] of 16 bits: four bits are a distance, of vectors 0 to 3 from the lowest on, then of 4
//          to 7, and so on; 15 is an exponent of 0.
// After all groups come
//   largest  [groups] of 8 bits, the exponents that distances are from,
//   strays   [groups + 1] or more: by their place, the few values that are smaller than any distance can
//            tell. The last one is past all places.
#pragma once

#include "level.h"

namespace cadenza {

constexpr int64_t kGroupInputs = kBf16Depth;
constexpr int64_t kVector = 32;  // values of 16 bits
constexpr int64_t kGroupValues = kGroupInputs * kPanel;
constexpr int64_t kRestsBytes = kGroupValues, kGroupBytes = kRestsBytes + kGroupValues / 2;
constexpr int64_t kFarthest = 14, kNoExponent = 15;  // codes

struct Stray {
  uint32_t place;  // among the panel's values
  uint16_t value;
  uint16_t unused;
};

constexpr uint32_t kNoPlace = UINT32_MAX;

// Where a panel has what, by its inputs.
struct CompactPanel {
  int64_t groups;

  explicit CompactPanel(int64_t depth) : groups(depth / kGroupInputs) {}

  int64_t largest() const { return groups * kGroupBytes; }
  int64_t strays() const { return largest() + round_up(groups, 64); }
  int64_t num_strays() const { return round_up(groups + 1, 64 / sizeof(Stray)); }
  int64_t bytes() const { return strays() + num_strays() * static_cast<int64_t>(sizeof(Stray)); }
};

}  // namespace cadenza

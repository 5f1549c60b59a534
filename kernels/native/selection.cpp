// Which of a row's tokens the filters keep, found without sorting.
#include <cstring>

#include "sampling.h"

namespace cadenza {
namespace {

constexpr int kDigit = 8;  // bits

// Scaled logits are up to 0: the better one has fewer of these.
uint32_t rank_of(float scaled) {
  uint32_t bits;
  std::memcpy(&bits, &scaled, sizeof bits);
  return bits & 0x7fffffffu;
}

// The worst rank that is kept, and how many tokens of it are: those with the lowest ids.
struct Last {
  uint32_t rank = 0xffffffffu;
  int64_t ties = 0;
};

// Digit by digit, the weights of the tokens that begin like the last one kept are put in buckets, and
// the bucket is found where their sum reaches the target.
Last last_reaching(const Kept& kept, double target) {
  uint64_t prefix = 0;
  double before = 0.0;  // weight of those that are better than what begins with the prefix
  for (int shift = 32 - kDigit; shift >= 0; shift -= kDigit) {
    double buckets[1 << kDigit] = {};
    for (int64_t i = 0; i < kept.count; ++i) {
      const uint64_t digits = rank_of(kept.scaled[i]) >> shift;
      if (digits >> kDigit == prefix) buckets[digits & ((1 << kDigit) - 1)] += kept.weights[i];
    }
    int digit = 0;
    while (before + buckets[digit] < target) {
      before += buckets[digit];
      if (++digit == 1 << kDigit) return {};  // all together weigh less
    }
    prefix = prefix << kDigit | static_cast<uint64_t>(digit);
  }
  Last last{static_cast<uint32_t>(prefix), 0};
  for (int64_t i = 0; i < kept.count && before < target; ++i) {
    if (rank_of(kept.scaled[i]) != last.rank) continue;
    before += kept.weights[i];
    ++last.ties;
  }
  return last;
}

}  // namespace

void keep_reaching(Kept& kept, double target) {
  // the best token weighs 1, and is kept whatever the target
  constexpr double least = 0x1p-1000;
  Last last = last_reaching(kept, target > least ? target : least);
  int64_t left = 0;
  for (int64_t i = 0; i < kept.count; ++i) {
    const uint32_t rank = rank_of(kept.scaled[i]);
    if (rank > last.rank || (rank == last.rank && last.ties-- <= 0)) continue;
    kept.ids[left] = kept.ids[i];
    kept.scaled[left] = kept.scaled[i];
    kept.weights[left] = kept.weights[i];
    ++left;
  }
  kept.count = left;
}

void keep_from(Kept& kept, float least) {
  int64_t left = 0;
  for (int64_t i = 0; i < kept.count; ++i) {
    if (!(kept.scaled[i] >= least)) continue;
    kept.ids[left] = kept.ids[i];
    kept.scaled[left++] = kept.scaled[i];
  }
  kept.count = left;
}

}  // namespace cadenza

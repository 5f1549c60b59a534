// Which of a row's tokens the filters keep, found without sorting them.
#include <algorithm>
#include <cmath>

#include "sampling.h"

namespace cadenza {
namespace {

constexpr int kBuckets = 512;
constexpr float kPerUnit = 16.0f;  // buckets; a power of two, so that no product is rounded

// The bucket where the weights of the better tokens reach the target; kBuckets if all weigh less.
// `before` becomes the weight of better buckets.
int bucket_reaching(const Kept& kept, double target, double& before) {
  double weights[kBuckets] = {};
  for (int64_t i = 0; i < kept.count; ++i) {
    const float place = std::min(kept.scaled[i] * -kPerUnit, kBuckets - 1.0f);
    weights[static_cast<int>(place)] += kept.weights[i];
  }
  int bucket = 0;
  while (bucket < kBuckets && before + weights[bucket] < target) before += weights[bucket++];
  return bucket;
}

// Puts those first that are kept, and returns their end. The token where the sum reaches the target
// is looked for in ever smaller halves.
Token* end_reaching(Token* first, Token* last, double before, double target) {
  const auto is_better = [](const Token& a, const Token& b) { return a.order < b.order; };
  while (last - first > 1) {
    Token* const middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, is_better);
    double weight = before;
    for (const Token* token = first; token < middle; ++token) weight += token->weight;
    if (weight < target) {
      before = weight;
      first = middle;
    } else {
      last = middle;
    }
  }
  return last;
}

}  // namespace

void keep_reaching(const Passes& passes, Kept& kept, double target, Token* tokens) {
  // the best token weighs 1, and is kept whatever the target
  target = std::max(target, 0x1p-1000);
  double before = 0.0;
  const int bucket = bucket_reaching(kept, target, before);
  if (bucket == kBuckets) return;
  const float above = static_cast<float>(-bucket) / kPerUnit;
  const float from = bucket == kBuckets - 1 ? -INFINITY : above - 1.0f / kPerUnit;
  const int64_t count = passes.divide(kept, above, from, tokens);
  const Token* const end = end_reaching(tokens, tokens + count, before, target);
  for (const Token* token = tokens; token < end; ++token) {
    kept.ids[kept.count] = token->id();
    kept.scaled[kept.count] = token->scaled();
    kept.weights[kept.count++] = token->weight;
  }
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

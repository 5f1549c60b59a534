#include "selection.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <new>

namespace cadenza {
namespace {

constexpr int kBuckets = 512;
constexpr float kPerUnit = 16.0f;  // buckets; a power of two, so that no product is rounded

int64_t blocks_of(int64_t size) { return (size + kBlock - 1) / kBlock; }

// A logit that at least `count` of the row reach, and few more: the `count`-th of the maxima, which
// are folded while they stay several times as many.
float reached_by(int64_t count, int64_t size, const Scratch& scratch) {
  int64_t left = blocks_of(size) * kLanes;
  if (count > left) return -INFINITY;
  std::copy(scratch.maxima, scratch.maxima + left, scratch.folded);
  while (left % 2 == 0 && left / 2 >= 4 * count) {
    left /= 2;
    for (int64_t i = 0; i < left; ++i)
      scratch.folded[i] = std::max(scratch.folded[i], scratch.folded[i + left]);
  }
  float* const found = scratch.folded + count - 1;
  std::nth_element(scratch.folded, found, scratch.folded + left, std::greater<float>());
  return *found;
}

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
  while (last - first > 1) {
    Token* const middle = first + (last - first) / 2;
    std::nth_element(first, middle, last);
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

const Scratch* scratch_for(int64_t size) {
  thread_local int64_t held = 0;
  thread_local std::unique_ptr<float[]> memory;
  thread_local std::unique_ptr<Token[]> tokens;
  thread_local Scratch scratch;
  if (size <= held) return &scratch;
  const int64_t room = blocks_of(size) * kBlock + kLanes, maxima = blocks_of(size) * kLanes;
  held = 0;
  memory.reset(new (std::nothrow) float[static_cast<size_t>(3 * room + 2 * maxima)]);
  tokens.reset(new (std::nothrow) Token[static_cast<size_t>(room)]);
  if (memory == nullptr || tokens == nullptr) return nullptr;
  held = size;
  float* const scaled = memory.get() + room;
  scratch.kept = {0, reinterpret_cast<int32_t*>(memory.get()), scaled, scaled + room};
  scratch.tokens = tokens.get();
  scratch.maxima = scaled + 2 * room;
  scratch.folded = scratch.maxima + maxima;
  return &scratch;
}

void gather(const Row& row, float least, const Scratch& scratch, Kept& kept) {
  row.passes.gather(
      row.logits, row.size, row.largest, row.temperature, least, scratch.maxima, kept);
}

double weigh(const Row& row, float least, Kept& kept) {
  return row.passes.weigh(row.logits, row.size, row.largest, row.temperature, least, kept);
}

void keep_best(const Row& row, int64_t count, float least, const Scratch& scratch, Kept& kept) {
  const float reached = reached_by(count, row.size, scratch);
  // as the passes scale it, so that nothing equal is lost
  gather(row, std::max((reached - row.largest) / row.temperature, least), scratch, kept);
  std::fill(kept.weights, kept.weights + kept.count, 1.0f);
  keep_reaching(row, static_cast<double>(count), scratch, kept);
}

void keep_reaching(const Row& row, double target, const Scratch& scratch, Kept& kept) {
  // the best token weighs 1, and is kept whatever the target
  target = std::max(target, 0x1p-1000);
  double before = 0.0;
  const int bucket = bucket_reaching(kept, target, before);
  if (bucket == kBuckets) return;
  const float above = static_cast<float>(-bucket) / kPerUnit;
  const float from = bucket == kBuckets - 1 ? -INFINITY : above - 1.0f / kPerUnit;
  const int64_t count = row.passes.divide(kept, above, from, scratch.tokens);
  const Token* const end =
      end_reaching(scratch.tokens, scratch.tokens + count, before, target);
  for (const Token* token = scratch.tokens; token < end; ++token) {
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

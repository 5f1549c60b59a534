// Log-probabilities of a row's token and of its best ones.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "exported.h"
#include "pool.h"
#include "selection.h"

namespace cadenza {
namespace {

struct Wanted {
  const Passes* passes;
  int64_t size;
  const float* logits;
  int64_t stride;
  const int32_t* rows;
  const int32_t* tokens;
  const int32_t* counts;
  int64_t most;
  float* sampled;
  int32_t* best_ids;
  float* best;
  std::atomic<bool> lacks_memory{false};

  void run(int64_t number) {
    const Scratch* scratch = scratch_for(size);
    if (scratch == nullptr) {
      lacks_memory = true;
      return;
    }
    const float* own = logits + rows[number] * stride;
    const Row row{*passes, own, size, passes->scan(own, size, scratch->maxima), 1.0f};
    Kept kept = scratch->kept;
    const double log_total = std::log(weigh(row, INFINITY, kept));
    const auto log_probability = [&](float scaled) {
      return static_cast<float>(scaled - log_total);
    };
    sampled[number] = log_probability(own[tokens[number]] - row.largest);
    if (counts[number] == 0) return;
    // what is masked counts too, where all else is fewer than wanted
    keep_best(row, counts[number], -INFINITY, *scratch, kept);
    Token* const found = scratch->tokens;
    for (int64_t i = 0; i < kept.count; ++i) found[i] = {kept.ids[i], kept.scaled[i], 0.0f};
    std::sort(found, found + kept.count);
    for (int64_t i = 0; i < counts[number]; ++i) {
      best_ids[number * most + i] = found[i].id();
      best[number * most + i] = log_probability(found[i].scaled());
    }
  }
};

}  // namespace
}  // namespace cadenza

using namespace cadenza;

// For `count` of the rows, which are none that fail: writes the log-probability of a token to
// sampled [count], and those of its counts[i] best tokens, up to `most` and to `size`, best first, to
// the beginning of best_ids and best [count, most]. Returns 0, or 1 when there is no memory.
extern "C" EXPORT int32_t cadenza_logprobs(
    int32_t level, int32_t threads, int64_t count, int64_t size, const float* logits,
    int64_t stride, const int32_t* rows, const int32_t* tokens, const int32_t* counts, int64_t most,
    float* sampled, int32_t* best_ids, float* best) {
  Wanted wanted;
  wanted.passes = &passes_of(level);
  wanted.size = size;
  wanted.logits = logits;
  wanted.stride = stride;
  wanted.rows = rows;
  wanted.tokens = tokens;
  wanted.counts = counts;
  wanted.most = most;
  wanted.sampled = sampled;
  wanted.best_ids = best_ids;
  wanted.best = best;
  run_tasks(
      threads, count,
      [](void* context, int64_t number, int64_t) { static_cast<Wanted*>(context)->run(number); }, &wanted);
  return wanted.lacks_memory;
}

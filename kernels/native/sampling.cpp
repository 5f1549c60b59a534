// The C functions of sampling, and a row's way through the passes.
#include "sampling.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>

#include "cpu.h"
#include "exported.h"
#include "pool.h"
#include "selection.h"

namespace cadenza {

Stream::Stream(const Settings& settings)
    : position(settings.position), choice(settings.choice) {
  uint32_t low = static_cast<uint32_t>(settings.seed);
  uint32_t high = static_cast<uint32_t>(settings.seed >> 32);
  for (int round = 0; round < kRounds; ++round) {
    keys[2 * round] = low;
    keys[2 * round + 1] = high;
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
}

const Passes& passes_of(int32_t number) {
  const Level* level = levels()[number];
  const Passes* found = portable_passes();
  if (level == avx2_level()) found = avx2_passes();
  else if (level != portable_level()) found = avx512_passes();  // those above avx512 have it
  return found == nullptr ? *portable_passes() : *found;
}

namespace {

// Tokens below e^least weigh less together than those that top-p leaves out: the best weighs 1.
float least_of_nucleus(double top_p, int64_t size) {
  const double left_out = 1.0 - top_p;
  if (left_out < 1e-9) return kLowest;  // sums are rounded
  return static_cast<float>(std::log(left_out / static_cast<double>(size)) - 0.1);
}

void filter(const Row& row, const Settings& settings, const Scratch& scratch, Kept& kept) {
  const bool has_top_p = settings.top_p < 1.0;
  const float least = settings.min_p > 0.0
      ? static_cast<float>(std::log(std::min(settings.min_p, 1.0))) : kLowest;
  if (0 < settings.top_k && settings.top_k < row.size) {
    keep_best(row, settings.top_k, kLowest, scratch, kept);
    if (has_top_p)
      keep_reaching(row, settings.top_p * row.passes.weigh_kept(kept), scratch, kept);
  } else if (has_top_p) {
    const double total = weigh(row, least_of_nucleus(settings.top_p, row.size), kept);
    keep_reaching(row, settings.top_p * total, scratch, kept);
  } else {
    gather(row, least, scratch, kept);
    return;
  }
  if (settings.min_p > 0.0) keep_from(kept, least);
}

constexpr int32_t kFailed = -1, kNoMemory = -2;

int32_t sampled(
    const Passes& passes, const float* logits, int64_t size, const Settings& settings) {
  if (settings.temperature == 0.0) return passes.best(logits, size);
  const Stream stream(settings);
  const auto temperature = static_cast<float>(settings.temperature);
  const bool has_top_k = 0 < settings.top_k && settings.top_k < size;
  if (!has_top_k && !(settings.top_p < 1.0) && !(settings.min_p > 0.0))
    return passes.drawn(logits, size, temperature, stream);
  const Scratch* scratch = scratch_for(size);
  if (scratch == nullptr) return kNoMemory;
  const float largest = passes.scan(logits, size, scratch->maxima);
  if (std::isnan(largest)) return kFailed;
  Kept kept = scratch->kept;
  filter({passes, logits, size, largest, temperature}, settings, *scratch, kept);
  return passes.drawn_of(kept, stream);
}

struct Step {
  const Passes* passes;
  int64_t size;
  const float* logits;
  int64_t stride;
  const float* const* shaped;
  const Settings* settings;
  int32_t* tokens;
  std::atomic<bool> lacks_memory{false};

  void run(int64_t row) {
    const float* const own = logits + row * stride;
    const float* const instead = shaped == nullptr ? nullptr : shaped[row];
    // what is shaped may hide what is not finite
    if (instead != nullptr && passes->best(own, size) < 0)
      tokens[row] = kFailed;
    else
      tokens[row] = sampled(*passes, instead == nullptr ? own : instead, size, settings[row]);
    if (tokens[row] == kNoMemory) lacks_memory = true;
  }
};

}  // namespace
}  // namespace cadenza

using namespace cadenza;

extern "C" {

// Samples each of `rows` rows of `size` fp32 logits, the first values of which are `stride` apart, by
// its own settings, into tokens [rows]; the row instead that has an address in `shaped`, if that is not
// null. -1 where a logit of either is NaN or +inf, or all are -inf. Returns 0, or 1 when there is no
// memory.
EXPORT int32_t cadenza_sample(int32_t level, int32_t threads, int64_t rows, int64_t size,
                              const float* logits, int64_t stride, const float* const* shaped,
                              const Settings* settings, int32_t* tokens) {
  Step step;
  step.passes = &passes_of(level);
  step.size = size;
  step.logits = logits;
  step.stride = stride;
  step.shaped = shaped;
  step.settings = settings;
  step.tokens = tokens;
  run_tasks(
      threads, rows,
      [](void* context, int64_t row, int64_t) { static_cast<Step*>(context)->run(row); }, &step);
  return step.lacks_memory;
}

// For tests: what no token shows by itself.

// The noise of the first `size` tokens under these settings, of which only the name counts.
EXPORT void cadenza_noise(int32_t level, const Settings* settings, int64_t size, float* noise) {
  passes_of(level).noise(Stream(*settings), size, noise);
}

// The noise of random words.
EXPORT void cadenza_noise_of(const uint32_t* words, int64_t count, float* noise) {
  std::transform(words, words + count, noise, noise_of);
}

// The weights of scaled logits, and their sum; both have room for 16 more.
EXPORT double cadenza_weights(int32_t level, float* scaled, int64_t count, float* weights) {
  const std::unique_ptr<int32_t[]> ids(new int32_t[static_cast<size_t>(count + kLanes)]);
  Kept kept{count, ids.get(), scaled, weights};
  return passes_of(level).weigh_kept(kept);
}

}  // extern "C"

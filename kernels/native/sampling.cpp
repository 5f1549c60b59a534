// The C functions of sampling, and a row's way through the passes.
#include "sampling.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <new>

#include "cpu.h"
#include "pool.h"

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

namespace {

int64_t blocks_of(int64_t size) { return (size + kBlock - 1) / kBlock; }

const Passes& passes_of(int32_t number) {
  const Level* level = levels()[number];
  const Passes* found = portable_passes();
  if (level == avx2_level()) found = avx2_passes();
  else if (level != portable_level()) found = avx512_passes();  // those above avx512 have it
  return found == nullptr ? *portable_passes() : *found;
}

// What a thread keeps from one row to the next. Null when there is no memory.
const Scratch* scratch_for(int64_t size) {
  thread_local int64_t held = 0;
  thread_local std::unique_ptr<float[]> memory;
  thread_local std::unique_ptr<Token[]> doubtful;
  thread_local Scratch scratch;
  if (size <= held) return &scratch;
  const int64_t tokens = size + kLanes, maxima = blocks_of(size) * kLanes;
  held = 0;
  memory.reset(new (std::nothrow) float[static_cast<size_t>(3 * tokens + 2 * maxima)]);
  doubtful.reset(new (std::nothrow) Token[static_cast<size_t>(size)]);
  if (memory == nullptr || doubtful == nullptr) return nullptr;
  held = size;
  float* scaled = memory.get() + tokens;
  scratch.kept = {0, reinterpret_cast<int32_t*>(memory.get()), scaled, scaled + tokens};
  scratch.tokens = doubtful.get();
  scratch.maxima = scaled + 2 * tokens;
  scratch.folded = scratch.maxima + maxima;
  return &scratch;
}

// A logit that at least `count` of the row reach, and few more: the `count`-th of the maxima, which
// are folded while they stay several times as many.
float reached_by(int64_t count, int64_t size, const Scratch& scratch) {
  int64_t left = blocks_of(size) * kLanes;
  if (count > left) return kLowest;
  std::copy(scratch.maxima, scratch.maxima + left, scratch.folded);
  while (left % 2 == 0 && left / 2 >= 4 * count) {
    left /= 2;
    for (int64_t i = 0; i < left; ++i)
      scratch.folded[i] = std::max(scratch.folded[i], scratch.folded[i + left]);
  }
  float* found = scratch.folded + count - 1;
  std::nth_element(scratch.folded, found, scratch.folded + left, std::greater<float>());
  return *found;
}

struct Row {
  const float* logits;
  int64_t size;
  float largest;
  float temperature;

  // As the passes compute it; kLowest at least, so that what is masked is never kept.
  float scaled(float logit) const {
    return std::max((logit - largest) / temperature, kLowest);
  }
};

void keep_best(const Passes& passes, const Row& row, int64_t count, const Scratch& scratch, Kept& kept) {
  const float least = row.scaled(reached_by(count, row.size, scratch));
  passes.gather(row.logits, row.size, row.largest, row.temperature, least, scratch.maxima, kept);
  std::fill(kept.weights, kept.weights + kept.count, 1.0f);
  keep_reaching(passes, kept, static_cast<double>(count), scratch.tokens);
}

// Tokens below e^least weigh less together than those that top-p leaves out: the best weighs 1.
float least_of_nucleus(double top_p, int64_t size) {
  const double left_out = 1.0 - top_p;
  if (left_out < 1e-9) return kLowest;  // sums are rounded
  return static_cast<float>(std::log(left_out / static_cast<double>(size)) - 0.1);
}

void filter(const Passes& passes, const Row& row, const Settings& settings, const Scratch& scratch,
            Kept& kept) {
  const bool has_top_p = settings.top_p < 1.0;
  const float least = settings.min_p > 0.0
      ? static_cast<float>(std::log(std::min(settings.min_p, 1.0))) : kLowest;
  if (0 < settings.top_k && settings.top_k < row.size) {
    keep_best(passes, row, settings.top_k, scratch, kept);
    if (has_top_p) keep_reaching(passes, kept, settings.top_p * passes.weigh_kept(kept), scratch.tokens);
  } else if (has_top_p) {
    const float candidates = least_of_nucleus(settings.top_p, row.size);
    const double total = passes.weigh(
        row.logits, row.size, row.largest, row.temperature, candidates, kept);
    keep_reaching(passes, kept, settings.top_p * total, scratch.tokens);
  } else {
    passes.gather(row.logits, row.size, row.largest, row.temperature, least, scratch.maxima, kept);
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
  filter(passes, {logits, size, largest, temperature}, settings, *scratch, kept);
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

#define EXPORT __attribute__((visibility("default")))

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
      [](void* context, int64_t row) { static_cast<Step*>(context)->run(row); }, &step);
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

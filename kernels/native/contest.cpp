#include "contest.h"

#include <cmath>

#include "sampling.h"

namespace cadenza {

// -log(-log(1 - u)) of u = (word + 0.5) / 2^32, which is rounded to fp32 as the reference rounds it
// and is below 1. Computed in double: the noise is the fp32 number next to the true one.
float noise_of(uint32_t word) {
  constexpr float below_one = 1.0f - 0x1p-24f;
  const float uniform = (static_cast<float>(word) + 0.5f) * 0x1p-32f;
  const double u = uniform < below_one ? uniform : below_one;
  return static_cast<float>(-std::log(-std::log1p(-u)));
}

void Contest::raise(float largest) {
  largest_ = largest;
  floor_ = kLeast;
  for (int i = 0; i < count_; ++i) lift(score(entries_[i]));
}

void Contest::lift(float score) {
  if (score - kSlack > floor_) floor_ = score - kSlack;
}

void Contest::enter(int32_t id, float logit, uint32_t word) {
  const Entry entry{id, logit, noise_of(word)};
  const float reached = score(entry);
  if (!(reached > floor_)) return;
  if (count_ == kMost) prune();
  if (count_ == kMost) {
    crowded_ = true;
    return;
  }
  entries_[count_++] = entry;
  lift(reached);
}

void Contest::prune() {
  if (known_) {
    const int32_t best = winner();
    for (int i = 0; i < count_; ++i)
      if (entries_[i].id == best) entries_[0] = entries_[i];
    count_ = 1;
    return;
  }
  int left = 0;
  for (int i = 0; i < count_; ++i)
    if (score(entries_[i]) > floor_) entries_[left++] = entries_[i];
  count_ = left;
}

int32_t Contest::winner() const {
  int32_t best = -1;
  float most = -INFINITY;
  for (int i = 0; i < count_; ++i) {
    const float reached = score(entries_[i]);
    if (reached > most || (reached == most && entries_[i].id < best)) {
      most = reached;
      best = entries_[i].id;
    }
  }
  return best;
}

}  // namespace cadenza

// Who may still win among tokens that come with their noise, while larger logits may yet be found.
#pragma once

#include <cstdint>

namespace cadenza {

// A score is (logit - largest) / temperature + noise, in fp32, with the largest logit of the row.
// Before that is known, scores differ from their last values by one number and by roundings. So
// tokens within a slack of the best are kept for the end: a handful, as a rule just one.
class Contest {
 public:
  // largest: of all logits if they are `known`, else of those seen.
  Contest(float largest, float temperature, bool known)
      : largest_(largest), temperature_(temperature), known_(known) {}

  float largest() const { return largest_; }
  float temperature() const { return temperature_; }
  float floor() const { return floor_; }        // a token whose score is no higher cannot win
  bool crowded() const { return crowded_; }     // some had no room: again, with what is known now
  void raise(float largest);                    // a larger logit has been seen
  void enter(int32_t id, float logit, uint32_t word);
  int32_t winner() const;                       // the lowest id of the largest score

 private:
  static constexpr int kMost = 64;
  static constexpr float kSlack = 1e-3f;        // scores that matter are rounded by 1e-5 at most
  // The token with the largest logit has the noise of the largest word at least: -2.8113
  static constexpr float kLeast = -2.82f;

  struct Entry {
    int32_t id;
    float logit;
    float noise;
  };

  float score(const Entry& entry) const {
    return (entry.logit - largest_) / temperature_ + entry.noise;
  }
  void lift(float score);
  void prune();

  float largest_;
  float temperature_;
  bool known_;
  bool crowded_ = false;
  float floor_ = kLeast;
  int count_ = 0;
  Entry entries_[kMost];
};

}  // namespace cadenza

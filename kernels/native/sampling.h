// What the files of sampling share.
//
// A token is the largest of scaled logit + Gumbel noise among those that the filters keep. Noise and
// scores of the few tokens that may win are computed in one place, for all levels; the levels find
// these few, and sum exponentials in one order without fused products. So no bit depends on a level.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cadenza {

constexpr int kLanes = 16;         // values that a level handles at once, in registers as it has them
constexpr int64_t kBlock = 256;    // tokens whose maxima are taken together, lane by lane
constexpr int kRounds = 10;        // of Philox-4x32
constexpr float kLowest = -3.402823466e38f;

// How one row is sampled; the dtype SETTINGS in kernels/sampling/settings.py.
struct Settings {
  uint64_t seed;
  double temperature;  // 0: greedy
  double top_p;        // from 1: off
  double min_p;        // up to 0: off
  int32_t top_k;       // up to 0: off
  uint32_t position;
  uint32_t choice;
};

// Some tokens of a row. Arrays have room for whole blocks and kLanes more.
struct Kept {
  int64_t count;
  int32_t* ids;
  float* scaled;   // (logit - largest) / temperature
  float* weights;  // exp(scaled)
};

// A token that compares by how good it is: by its scaled logit, which is up to 0, then by its id.
struct Token {
  uint64_t order;
  float weight;

  Token() = default;
  Token(int32_t id, float scaled, float weight) : weight(weight) {
    uint32_t bits;
    __builtin_memcpy(&bits, &scaled, sizeof bits);
    order = static_cast<uint64_t>(bits & 0x7fffffffu) << 32 | static_cast<uint32_t>(id);
  }

  bool operator<(const Token& other) const { return order < other.order; }

  int32_t id() const { return static_cast<int32_t>(order); }
  float scaled() const {
    const uint32_t bits = static_cast<uint32_t>(order >> 32) | 0x80000000u;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }
};

// The noise of a row: the key of each round, and the words of the counter that all its calls have.
struct Stream {
  uint64_t keys[2 * kRounds];
  uint32_t position, choice;

  explicit Stream(const Settings& settings);
};

// One level's passes over a row. Logits may have any address.
struct Passes {
  // Returns the token with the largest of `size` logits, the first of them; -1 if the row fails.
  int32_t (*best)(const float* logits, int64_t size);
  // Returns the token with the largest score of all, in one pass; -1 if the row fails.
  int32_t (*drawn)(const float* logits, int64_t size, float temperature, const Stream& stream);
  // Returns the token with the largest score of those kept.
  int32_t (*drawn_of)(const Kept& kept, const Stream& stream);
  // Writes the maxima of every block. Returns the largest; NaN if the row fails.
  float (*scan)(const float* logits, int64_t size, float* maxima);
  // Keeps the tokens with scaled logit >= least, by the maxima of a scan.
  void (*gather)(const float* logits, int64_t size, float largest, float temperature, float least,
                 const float* maxima, Kept& kept);
  // Keeps likewise, with weights, and returns the sum of all weights of the row.
  double (*weigh)(const float* logits, int64_t size, float largest, float temperature, float least,
                  Kept& kept);
  // Weighs what is kept already, and returns the sum.
  double (*weigh_kept)(Kept& kept);
  // Keeps the tokens with scaled logit > above, and moves those up to it but >= from to `tokens`.
  // Returns how many these are.
  int64_t (*divide)(Kept& kept, float above, float from, Token* tokens);
  // Writes the first `size` tokens' noise. For tests: nothing else wants that of every token.
  void (*noise)(const Stream& stream, int64_t size, float* noise);
};

// Each returns null where it was not compiled.
const Passes* portable_passes();
const Passes* avx2_passes();
const Passes* avx512_passes();

// Those of the level of this number, which cadenza_level names.
const Passes& passes_of(int32_t number);

// The fp32 noise of a token with this random word.
float noise_of(uint32_t word);

}  // namespace cadenza

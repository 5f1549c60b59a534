// Sampling in plain C++, for any machine.
#include <cmath>

#include "contest.h"
#include "level.h"
#include "sampling.h"

#define TARGET

namespace cadenza {
namespace {

template <class Value, int COUNT>
struct Lanes {
  Value at[COUNT];
};

using Floats = Lanes<float, kLanes>;
using Ints = Lanes<int32_t, kLanes>;
using Longs = Lanes<uint64_t, kLanes / 2>;  // words of 32 bits, under bits of no meaning
using Doubles = Lanes<double, kLanes>;
using Mask = uint32_t;  // a bit a lane

template <class Result, class Function>
inline Result each(Function function) {
  Result result;
  constexpr int count = sizeof result.at / sizeof result.at[0];
  for (int i = 0; i < count; ++i) result.at[i] = function(i);
  return result;
}

template <class Function>
inline Mask mask(Function function) {
  Mask result = 0;
  for (int i = 0; i < kLanes; ++i) result |= static_cast<Mask>(function(i)) << i;
  return result;
}

template <class To, class From>
inline To same_bits(From from) {
  To to;
  static_assert(sizeof to == sizeof from, "bits of another size");
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

inline Floats load(const float* from) { return each<Floats>([=](int i) { return from[i]; }); }
inline Ints load_ints(const int32_t* from) { return each<Ints>([=](int i) { return from[i]; }); }
inline Longs load_longs(const uint64_t* from) { return each<Longs>([=](int i) { return from[i]; }); }
inline void store(float* to, const Floats& a) { __builtin_memcpy(to, a.at, sizeof a.at); }
inline void store_ints(int32_t* to, const Ints& a) { __builtin_memcpy(to, a.at, sizeof a.at); }

inline Floats broadcast(float value) { return each<Floats>([=](int) { return value; }); }
inline Ints all_ints(int32_t value) { return each<Ints>([=](int) { return value; }); }
inline Longs all_longs(uint64_t value) { return each<Longs>([=](int) { return value; }); }
inline Ints numbers() { return each<Ints>([](int i) { return i; }); }

inline Floats add(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.at[i] + b.at[i]; });
}
inline Floats subtract(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.at[i] - b.at[i]; });
}
inline Floats multiply(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.at[i] * b.at[i]; });
}
inline Floats divide(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.at[i] / b.at[i]; });
}
// a b + c, rounded once or twice
inline Floats multiply_add(const Floats& a, const Floats& b, const Floats& c) {
  return add(multiply(a, b), c);
}
// of NaN and a number, either
inline Floats larger(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.at[i] > b.at[i] ? a.at[i] : b.at[i]; });
}
inline Floats where(Mask mask, const Floats& a) {
  return each<Floats>([&](int i) { return mask >> i & 1 ? a.at[i] : 0.0f; });
}

inline Mask above(const Floats& a, const Floats& b) {
  return mask([&](int i) { return a.at[i] > b.at[i]; });
}
inline Mask at_least(const Floats& a, const Floats& b) {
  return mask([&](int i) { return a.at[i] >= b.at[i]; });
}
inline Mask is_nan(const Floats& a, const Floats& b) {
  return mask([&](int i) { return a.at[i] != a.at[i] || b.at[i] != b.at[i]; });
}

inline Ints bits_of(const Floats& a) { return same_bits<Ints>(a); }
inline Floats as_floats(const Ints& a) { return same_bits<Floats>(a); }
inline Longs as_longs(const Ints& a) {
  return each<Longs>([&](int i) {
    return static_cast<uint32_t>(a.at[2 * i]) |
           static_cast<uint64_t>(static_cast<uint32_t>(a.at[2 * i + 1])) << 32;
  });
}
inline Floats to_floats(const Ints& a) {
  return each<Floats>([&](int i) { return static_cast<float>(a.at[i]); });
}

inline Ints add_ints(const Ints& a, const Ints& b) {
  return each<Ints>([&](int i) {
    return static_cast<int32_t>(static_cast<uint32_t>(a.at[i]) + static_cast<uint32_t>(b.at[i]));
  });
}
inline Ints halved(const Ints& a) {
  return each<Ints>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.at[i]) >> 1); });
}
inline Ints quartered(const Ints& a) { return halved(halved(a)); }
inline Ints shifted_by_23(const Ints& a) {
  return each<Ints>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.at[i]) << 23); });
}

inline Longs add_longs(const Longs& a, const Longs& b) {
  return each<Longs>([&](int i) { return a.at[i] + b.at[i]; });
}
// of the lower words
inline Longs product(const Longs& a, const Longs& b) {
  return each<Longs>([&](int i) { return (a.at[i] & 0xffffffffu) * (b.at[i] & 0xffffffffu); });
}
inline Longs high(const Longs& a) { return each<Longs>([&](int i) { return a.at[i] >> 32; }); }
inline Longs exclusive(const Longs& a, const Longs& b, const Longs& c) {
  return each<Longs>([&](int i) { return a.at[i] ^ b.at[i] ^ c.at[i]; });
}
// the lower words of both, in turns
inline Ints merged(const Longs& even, const Longs& odd) {
  return each<Ints>([&](int i) {
    return static_cast<int32_t>(static_cast<uint32_t>((i % 2 ? odd : even).at[i / 2]));
  });
}

// of each lane, the word that the last two bits of `which` name
inline Ints chosen(const Ints& which, const Ints (&words)[4]) {
  return each<Ints>([&](int i) { return words[which.at[i] & 3].at[i]; });
}

// of the 4 x 4 values in each four lanes
inline void transpose(Floats (&rows)[4]) {
  Floats columns[4];
  for (int i = 0; i < 4; ++i)
    columns[i] = each<Floats>([&](int lane) { return rows[lane % 4].at[lane / 4 * 4 + i]; });
  for (int i = 0; i < 4; ++i) rows[i] = columns[i];
}

// The lanes of the mask, one after another; writes kLanes values, the rest of which mean nothing.
inline void compress(const Floats& a, Mask mask, float* to) {
  for (; mask; mask &= mask - 1) *to++ = a.at[__builtin_ctz(mask)];
}

inline Doubles no_doubles() { return each<Doubles>([](int) { return 0.0; }); }
inline void accumulate(Doubles& sums, const Floats& a) {
  for (int i = 0; i < kLanes; ++i) sums.at[i] += a.at[i];
}
inline double sum_of(const Doubles& sums) {
  double sum = 0.0;
  for (double lane : sums.at) sum += lane;
  return sum;
}

#include "sampling_passes.h"

}  // namespace

const Passes* portable_passes() { return &kPasses; }

}  // namespace cadenza

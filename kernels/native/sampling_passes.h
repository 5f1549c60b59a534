// The passes over a row, in the words of a level: whoever includes this has defined TARGET and the
// functions of its registers (those of sampling_portable.cpp say what each does).

// The block of kBlock logits that begins at `start`; what it lacks at the end is -inf.
TARGET inline const float* block_at(
    const float* logits, int64_t size, int64_t start, float (&padded)[kBlock]) {
  if (start + kBlock <= size) return logits + start;
  for (int64_t i = 0; i < kBlock; ++i) padded[i] = start + i < size ? logits[start + i] : -INFINITY;
  return padded;
}

// Takes the maxima of the four quarters of a block; returns whether any logit is NaN.
TARGET inline Mask maxima_of(const float* block, Floats (&quarters)[4]) {
  Mask nans = 0;
  EACH(i, 4) {
    const float* first = block + 4 * kLanes * i;
    const Floats a = load(first), b = load(first + kLanes);
    const Floats c = load(first + 2 * kLanes), d = load(first + 3 * kLanes);
    nans |= is_nan(a, b) | is_nan(c, d);
    quarters[i] = larger(larger(a, b), larger(c, d));
  }
  return nans;
}

TARGET inline Floats larger_of(const Floats (&quarters)[4]) {
  return larger(larger(quarters[0], quarters[1]), larger(quarters[2], quarters[3]));
}

TARGET inline float largest_lane(Floats values) {
  float lanes[kLanes], largest = -INFINITY;
  store(lanes, values);
  for (float lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

TARGET inline bool has_failed(Mask nans, float largest) {
  return nans || !(largest > -INFINITY && largest < INFINITY);
}

TARGET int32_t best(const float* logits, int64_t size) {
  float padded[kBlock];
  float largest = -INFINITY;
  int64_t found = 0;
  Mask nans = 0;
  for (int64_t start = 0; start < size; start += kBlock) {
    Floats quarters[4];
    nans |= maxima_of(block_at(logits, size, start, padded), quarters);
    const Floats top = larger_of(quarters);
    if (above(top, broadcast(largest))) {
      largest = largest_lane(top);
      found = start;
    }
  }
  if (has_failed(nans, largest)) return -1;
  while (logits[found] != largest) ++found;
  return static_cast<int32_t>(found);
}

TARGET float scan(const float* logits, int64_t size, float* maxima) {
  float padded[kBlock];
  Floats top = broadcast(-INFINITY);
  Mask nans = 0;
  for (int64_t start = 0; start < size; start += kBlock) {
    Floats quarters[4];
    nans |= maxima_of(block_at(logits, size, start, padded), quarters);
    const Floats of_block = larger_of(quarters);
    store(maxima, of_block);
    maxima += kLanes;
    top = larger(top, of_block);
  }
  const float largest = largest_lane(top);
  return has_failed(nans, largest) ? NAN : largest;
}

#include "sampling_draw.h"

// exp(x) for x up to 0, within 2 units in the last place; 0 under -87. x = n ln 2 + r with |r| up to
// ln 2 / 2, and e^r is a polynomial, which was fitted for the least largest relative error. No
// product is fused with a sum, so that all levels give the same bits.
TARGET inline Floats exponential(Floats x) {
  constexpr float steps[] = {0x1.6a23dp-10f, 0x1.123a2p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f,
                             0x1.fffffcp-2f};
  const Floats shifter = broadcast(0x1.8p23f);  // in a sum, its last bits are those of a whole number
  const Floats shifted = add(multiply(x, broadcast(1.44269504f)), shifter);
  const Floats whole = subtract(shifted, shifter);
  Floats rest = subtract(x, multiply(whole, broadcast(0x1.62ep-1f)));  // products of few bits are exact
  rest = subtract(rest, multiply(whole, broadcast(0x1.0bfbe8p-15f)));
  Floats sum = broadcast(steps[0]);
  EACH(i, 4) sum = add(multiply(sum, rest), broadcast(steps[i + 1]));
  sum = add(add(multiply(multiply(sum, rest), rest), rest), broadcast(1.0f));
  const Ints power = add_ints(shifted_by_23(bits_of(shifted)), all_ints(127 << 23));
  return where(at_least(x, broadcast(-87.0f)), multiply(sum, as_floats(power)));
}

TARGET inline void keep(Kept& kept, Mask mask, Ints ids, Floats scaled) {
  compress(as_floats(ids), mask, reinterpret_cast<float*>(kept.ids + kept.count));
  compress(scaled, mask, kept.scaled + kept.count);
  kept.count += __builtin_popcount(mask);
}

TARGET inline Ints ids_from(int64_t token) {
  return add_ints(all_ints(static_cast<int32_t>(token)), numbers());
}

TARGET inline Floats scaled_by(Floats logits, Floats largest, Floats temperature) {
  return divide(subtract(logits, largest), temperature);
}

TARGET void gather(const float* logits, int64_t size, float largest, float temperature, float least,
                   const float* maxima, Kept& kept) {
  float padded[kBlock];
  const Floats by = broadcast(temperature), most = broadcast(largest), from = broadcast(least);
  kept.count = 0;
  for (int64_t start = 0; start < size; start += kBlock, maxima += kLanes) {
    if (!at_least(scaled_by(load(maxima), most, by), from)) continue;
    const float* block = block_at(logits, size, start, padded);
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      const Floats scaled = scaled_by(load(block + i), most, by);
      const Mask mask = at_least(scaled, from);
      if (!mask) continue;
      keep(kept, mask, ids_from(start + i), scaled);
    }
  }
}

TARGET double weigh(const float* logits, int64_t size, float largest, float temperature,
                    float least, Kept& kept) {
  float padded[kBlock];
  const Floats by = broadcast(temperature), most = broadcast(largest), from = broadcast(least);
  Doubles sums = no_doubles();
  kept.count = 0;
  for (int64_t start = 0; start < size; start += kBlock) {
    const float* block = block_at(logits, size, start, padded);
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      const Floats scaled = scaled_by(load(block + i), most, by);
      const Floats weights = exponential(scaled);
      accumulate(sums, weights);
      const Mask mask = at_least(scaled, from);
      if (!mask) continue;
      compress(weights, mask, kept.weights + kept.count);
      keep(kept, mask, ids_from(start + i), scaled);
    }
  }
  return sum_of(sums);
}

TARGET double weigh_kept(Kept& kept) {
  pad(kept);
  Doubles sums = no_doubles();
  for (int64_t i = 0; i < kept.count; i += kLanes) {
    const Floats weights = exponential(load(kept.scaled + i));
    store(kept.weights + i, weights);
    accumulate(sums, weights);
  }
  return sum_of(sums);
}

TARGET int64_t divide(Kept& kept, float above_this, float from, Token* tokens) {
  pad(kept);
  const Floats upper = broadcast(above_this), lower = broadcast(from);
  const int64_t count = kept.count;
  int64_t moved = 0;
  kept.count = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats scaled = load(kept.scaled + i), weights = load(kept.weights + i);
    const Ints ids = load_ints(kept.ids + i);
    const Mask stays = above(scaled, upper);
    for (Mask moves = at_least(scaled, lower) & ~stays; moves; moves &= moves - 1) {
      const int64_t lane = i + __builtin_ctz(moves);
      tokens[moved++] = Token(kept.ids[lane], kept.scaled[lane], kept.weights[lane]);
    }
    // what is written lies no further than what has been read
    if (!stays) continue;
    compress(weights, stays, kept.weights + kept.count);
    keep(kept, stays, ids, scaled);
  }
  return moved;
}

constexpr Passes kPasses{best, drawn, drawn_of, scan, gather, weigh, weigh_kept, divide, noise};

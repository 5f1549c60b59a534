// Random words, and the passes that draw; a part of sampling_passes.h.

// Four words of sixteen calls of Philox, eight in the even lanes and eight in the odd ones. A product
// of 32 bits takes a lane of 64, where its halves lie well for the next round: the upper one of what
// goes into a product does not matter.
TARGET inline void eight_calls(const Stream& stream, Longs calls, Longs (&words)[4]) {
  const Longs first = all_longs(0xD2511F53u), third = all_longs(0xCD9E8D57u);
  words[0] = all_longs(stream.position);
  words[1] = all_longs(stream.choice);
  words[2] = calls;
  words[3] = all_longs(0);
  EACH(round, kRounds) {
    const Longs from_first = product(words[0], first), from_third = product(words[2], third);
    words[0] = exclusive(high(from_third), words[1], all_longs(stream.keys[2 * round]));
    words[2] = exclusive(high(from_first), words[3], all_longs(stream.keys[2 * round + 1]));
    words[1] = from_third;
    words[3] = from_first;
  }
}

TARGET inline void random_words(
    const Stream& stream, Longs even_calls, Longs odd_calls, Ints (&words)[4]) {
  Longs even[4], odd[4];
  eight_calls(stream, even_calls, even);
  eight_calls(stream, odd_calls, odd);
  EACH(i, 4) words[i] = merged(even[i], odd[i]);
}

// Of 64 tokens, lane 4 i + j has those of call 4 j + i: there a transposition of four puts them.
constexpr uint64_t kEvenCalls[] = {0, 8, 1, 9, 2, 10, 3, 11};
constexpr uint64_t kOddCalls[] = {4, 12, 5, 13, 6, 14, 7, 15};

TARGET inline int64_t token_of(int lane, int word) { return 16 * (lane % 4) + lane / 4 * 4 + word; }

TARGET inline void words_from(const Stream& stream, int64_t token, Ints (&words)[4]) {
  const Longs call = all_longs(static_cast<uint64_t>(token / 4));
  random_words(stream, add_longs(load_longs(kEvenCalls), call),
               add_longs(load_longs(kOddCalls), call), words);
}

// What a token needs for a score above the contest's floor. With x = -log(1 - u), noise is -log(x)
// and u < x, so that u < exp(scaled - floor). This is compared by logarithms to base 2, for which the
// bits of a word as a float serve: they are never more. Logits are scaled by a product, and may be:
// the contest's slack is wider than all that is rounded.
struct Bound {
  Floats largest, scale, offset;

  TARGET explicit Bound(const Contest& contest) {
    constexpr float unit = 0x1p23f, log2_e = 1.44269504f, exponents = 127.0f + 31.0f;
    largest = broadcast(contest.largest());
    scale = broadcast(unit * log2_e / contest.temperature());
    offset = broadcast(unit * (exponents - log2_e * contest.floor()));
  }

  TARGET Floats room(Floats logits) const {
    return multiply_add(subtract(logits, largest), scale, offset);
  }

  // 31 bits of a word can be converted as signed; of the smallest, their log2 is taken for -127
  TARGET Mask hopeful(Floats logits, Ints words) const {
    return above(room(logits), to_floats(bits_of(to_floats(halved(words)))));
  }

  // With the smallest word, whose half is 1/4 with the half that is added to it.
  TARGET Mask reachable(Floats logits) const {
    return above(room(logits), broadcast(0x1p23f * (127.0f - 2.0f)));
  }
};

TARGET inline void enter(
    Contest& contest, const float* logits, int64_t token, Ints words, int word, Mask hits) {
  int32_t lanes[kLanes];
  store_ints(lanes, words);
  for (; hits; hits &= hits - 1) {
    const int lane = __builtin_ctz(hits);
    const int64_t number = token_of(lane, word);
    contest.enter(static_cast<int32_t>(token + number), logits[number],
                  static_cast<uint32_t>(lanes[lane]));
  }
}

// Draws among 64 tokens from `token` on; returns whether any entered.
TARGET inline bool draw_quarter(const float* logits, int64_t token, const Stream& stream,
                                const Bound& bound, Contest& contest) {
  Floats values[4];
  EACH(i, 4) values[i] = load(logits + kLanes * i);
  transpose(values);
  Ints words[4];
  words_from(stream, token, words);
  Mask hits[4], any = 0;
  EACH(i, 4) any |= hits[i] = bound.hopeful(values[i], words[i]);
  if (!any) return false;
  for (int i = 0; i < 4; ++i) enter(contest, logits, token, words[i], i, hits[i]);
  return true;
}

// Returns whether any logit is NaN.
TARGET Mask draw(const float* logits, int64_t size, const Stream& stream, Contest& contest) {
  float padded[kBlock];
  Mask nans = 0;
  Bound bound(contest);
  for (int64_t start = 0; start < size; start += kBlock) {
    const float* block = block_at(logits, size, start, padded);
    Floats quarters[4];
    nans |= maxima_of(block, quarters);
    const Floats top = larger_of(quarters);
    if (above(top, bound.largest)) {
      contest.raise(largest_lane(top));
      bound = Bound(contest);
    }
    for (int i = 0; i < 4; ++i) {
      if (!bound.reachable(quarters[i])) continue;
      const int64_t first = 4 * kLanes * i;
      if (draw_quarter(block + first, start + first, stream, bound, contest))
        bound = Bound(contest);
    }
  }
  return nans;
}

TARGET int32_t drawn(
    const float* logits, int64_t size, float temperature, const Stream& stream) {
  Contest contest(-INFINITY, temperature, false);
  const Mask nans = draw(logits, size, stream, contest);
  if (has_failed(nans, contest.largest())) return -1;
  if (!contest.crowded()) return contest.winner();
  Contest again(contest.largest(), temperature, true);
  draw(logits, size, stream, again);
  return again.winner();
}

// Fills the last register with what is in no order to anything.
TARGET inline void pad(const Kept& kept) {
  for (int64_t i = kept.count; i < kept.count + kLanes; ++i) {
    kept.ids[i] = 0;
    kept.scaled[i] = NAN;
  }
}

TARGET int32_t drawn_of(const Kept& kept, const Stream& stream) {
  pad(kept);
  Contest contest(0.0f, 1.0f, true);
  Bound bound(contest);
  for (int64_t i = 0; i < kept.count; i += kLanes) {
    const Floats scaled = load(kept.scaled + i);
    if (!bound.reachable(scaled)) continue;
    const Ints ids = load_ints(kept.ids + i);
    const Longs calls = as_longs(quartered(ids));
    Ints words[4];
    random_words(stream, calls, high(calls), words);
    const Ints word = chosen(ids, words);
    Mask hits = bound.hopeful(scaled, word);
    if (!hits) continue;
    int32_t lanes[kLanes];
    store_ints(lanes, word);
    for (; hits; hits &= hits - 1) {
      const int lane = __builtin_ctz(hits);
      contest.enter(kept.ids[i + lane], kept.scaled[i + lane], static_cast<uint32_t>(lanes[lane]));
    }
    bound = Bound(contest);
  }
  return contest.winner();
}

TARGET void noise(const Stream& stream, int64_t size, float* noise) {
  for (int64_t token = 0; token < size; token += 4 * kLanes) {
    Ints words[4];
    words_from(stream, token, words);
    for (int word = 0; word < 4; ++word) {
      int32_t lanes[kLanes];
      store_ints(lanes, words[word]);
      for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t at = token + token_of(lane, word);
        if (at < size) noise[at] = noise_of(static_cast<uint32_t>(lanes[lane]));
      }
    }
  }
}

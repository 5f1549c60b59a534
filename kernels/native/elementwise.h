// What is done value by value, and what becomes of a tile's sums. Who includes this has defined
// TARGET, the instruction sets of its functions, inside its own namespace; and `transpose`, which
// turns kTransposed rows of as many words, from one of their words on, into columns of a panel.
//
// Plain loops, which compilers turn into vectors. Each product and each sum is rounded, and a sum of
// many goes into 16 lanes that are added in one order, so that all levels have the same bits.

// Nearest, ties to even; NaN stays NaN.
TARGET inline uint16_t to_bfloat16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : nearest);
}

TARGET inline float from_bfloat16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  __builtin_memcpy(&result, &bits, sizeof result);
  return result;
}

// Two bf16 that lie side by side.
TARGET inline int32_t pair_at(const char* x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, sizeof pair);
  return pair;
}

// The value as it is kept: of two bytes, a bf16.
template <class Value>
TARGET inline Value as(float value) {
  if constexpr (sizeof(Value) == 2)
    return to_bfloat16(value);
  else
    return value;
}

TARGET inline float larger(float left, float right) { return left > right ? left : right; }

// exp(x) to 2 units in the last place, of x between -87 and 88; beyond, of the nearer end. NaN stays.
// Source of the polynomial: expf of the Cephes library, S. Moshier.
TARGET inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float n = (x * 1.44269504f + shift) - shift;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r * r + r) + 1.0f;
  const auto power_of_two = static_cast<int32_t>(x == x ? n : 0.0f);
  const uint32_t bits = static_cast<uint32_t>(power_of_two + 127) << 23;
  float power;
  __builtin_memcpy(&power, &bits, sizeof power);
  return p * power;
}

TARGET inline float added(const float (&lanes)[kSumLanes]) {
  float sums[kSumLanes];
  for (int64_t i = 0; i < kSumLanes; ++i) sums[i] = lanes[i];
  for (int64_t width = kSumLanes / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  return sums[0];
}

template <class Value>
TARGET inline void convert_as(const float* x, int64_t size, float factor, Value* y) {
  for (int64_t i = 0; i < size; ++i) y[i] = as<Value>(x[i] * factor);
}

TARGET inline void convert(const float* x, int64_t size, float factor, int32_t dtype, char* y) {
  if (dtype == kBfloat16)
    convert_as(x, size, factor, reinterpret_cast<uint16_t*>(y));
  else
    convert_as(x, size, factor, reinterpret_cast<float*>(y));
}

TARGET inline void convert(const float* x, int64_t size, int32_t dtype, char* y) {
  convert(x, size, 1.0f, dtype, y);
}

TARGET inline void divide(const Division& d, int32_t dtype) {
  float totals[kSumLanes];
  __builtin_memcpy(totals, d.totals, sizeof totals);
  convert(d.attended, d.dims, 1.0f / added(totals), dtype, d.y);
}

template <class Value>
TARGET inline void scale(const float* x, const float* weight, int64_t size, float root, Value* y) {
  for (int64_t i = 0; i < size; ++i) y[i] = as<Value>(x[i] * root * weight[i]);
}

TARGET inline void norm(const float* x, const float* weight, int64_t size, float eps, int32_t dtype,
                        char* y) {
  float lanes[kSumLanes] = {};
  int64_t i = 0;
  for (; i + kSumLanes <= size; i += kSumLanes)
    for (int64_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  for (int64_t lane = 0; i + lane < size; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  const float root = 1.0f / __builtin_sqrtf(added(lanes) / static_cast<float>(size) + eps);
  if (dtype == kBfloat16)
    scale(x, weight, size, root, reinterpret_cast<uint16_t*>(y));
  else
    scale(x, weight, size, root, reinterpret_cast<float*>(y));
}

template <class Value>
TARGET inline void rotate_as(const Rotation& r) {
  auto* y = reinterpret_cast<Value*>(r.y);
  for (int64_t i = 0; i < r.half; ++i) {
    const float first = r.x[i], second = r.x[r.half + i];
    y[i] = as<Value>(first * r.cos[i] - second * r.sin[i]);
    y[r.half + i] = as<Value>(second * r.cos[i] + first * r.sin[i]);
  }
}

TARGET inline void rotate(const Rotation& r, int32_t dtype) {
  if (dtype == kBfloat16)
    rotate_as<uint16_t>(r);
  else
    rotate_as<float>(r);
}

// Scaled scores of the keys that are seen; of others -inf.
TARGET inline void take_scores(const Softmax& s, float (&scores)[kKeyTile]) {
  const auto seen = static_cast<int32_t>(s.seen);
  const float scale = s.scale;
  const float* from = s.scores;
  for (int32_t key = 0; key < kKeyTile; ++key) {
    const float score = from[key] * scale;
    scores[key] = key < seen ? score : -__builtin_inff();
  }
}

// Rounds weights to the dtype, and keeps them so.
TARGET inline void round_weights(float (&weights)[kKeyTile], int32_t dtype, char* y) {
  if (dtype == kBfloat16) {
    auto* rounded = reinterpret_cast<uint16_t*>(y);
    for (int64_t key = 0; key < kKeyTile; ++key) rounded[key] = to_bfloat16(weights[key]);
    for (int64_t key = 0; key < kKeyTile; ++key) weights[key] = from_bfloat16(rounded[key]);
  } else {
    __builtin_memcpy(y, weights, sizeof weights);
  }
}

TARGET inline void softmax(const Softmax& s, int32_t dtype) {
  float scores[kKeyTile], weights[kKeyTile], lanes[kSumLanes];
  take_scores(s, scores);
  for (int64_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] = *s.most;
  for (int64_t key = 0; key < kKeyTile; key += kSumLanes)
    for (int64_t lane = 0; lane < kSumLanes; ++lane)
      lanes[lane] = larger(scores[key + lane], lanes[lane]);
  for (int64_t width = kSumLanes / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) lanes[i] = larger(lanes[i + width], lanes[i]);
  const float most = lanes[0];
  for (int64_t key = 0; key < kKeyTile; ++key) {
    const float weight = exponential(scores[key] - most);
    weights[key] = scores[key] == -__builtin_inff() ? 0.0f : weight;
  }
  round_weights(weights, dtype, s.weights);
  const float kept = exponential(*s.most - most);
  *s.most = most;
  for (int64_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] = s.totals[lane] * kept;
  for (int64_t key = 0; key < kKeyTile; key += kSumLanes)
    for (int64_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] += weights[key + lane];
  __builtin_memcpy(s.totals, lanes, sizeof lanes);
  float* attended = s.attended;
  for (int64_t i = 0; i < s.dims; ++i) attended[i] *= kept;
}

// [kKeyTile][words] -> [kKeyTile / kPanel][words][kPanel], of 4 bytes: one fp32 or two bf16.
TARGET inline void pack_keys(const char* const* keys, int64_t words, int64_t padded, char* packed) {
  auto* to = reinterpret_cast<uint32_t*>(packed);
  for (int64_t panel = 0; panel < kKeyTile / kPanel; ++panel, to += padded * kPanel) {
    int64_t word = 0;
    for (; word + kTransposed <= words; word += kTransposed)
      for (int64_t key = 0; key < kPanel; key += kTransposed)
        transpose(keys + panel * kPanel + key, word, to + word * kPanel + key);
    for (; word < padded; ++word) {
      for (int64_t key = 0; key < kPanel; ++key) {
        const char* from = keys[panel * kPanel + key] + 4 * word;
        uint32_t value = 0;
        if (word < words) __builtin_memcpy(&value, from, sizeof value);
        to[word * kPanel + key] = value;
      }
    }
  }
}

TARGET inline void pack_values(const float* value, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = value[i];
  for (int64_t i = count; i < kPanel; ++i) to[i] = 0.0f;
}

// Two keys' values side by side.
TARGET inline void pack_values(const uint16_t* __restrict first, const uint16_t* __restrict second,
                               int64_t count, uint32_t* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] = first[i] | static_cast<uint32_t>(second[i]) << 16;
  for (int64_t i = count; i < kPanel; ++i) to[i] = 0;
}

TARGET inline void pack_tile(const KeyTile& t, int32_t dtype) {
  const int64_t size = dtype == kBfloat16 ? 2 : 4;
  pack_keys(t.keys, t.dims * size / 4, padded_depth(t.dims, dtype) * size / 4, t.packed_keys);
  for (int64_t panel = 0; panel < t.dims; panel += kPanel) {
    const int64_t left = t.dims - panel, from = panel * size;
    char* to = t.packed_values + panel * kKeyTile * size;
    for (int64_t key = 0; key < kKeyTile; key += 4 / size) {
      const char* const* values = t.values + key;
      if (dtype == kFloat32)
        pack_values(reinterpret_cast<const float*>(values[0] + from), left < kPanel ? left : kPanel,
                    reinterpret_cast<float*>(to));
      else if (left >= kPanel)  // most often: a constant makes a loop without a remainder
        pack_values(reinterpret_cast<const uint16_t*>(values[0] + from),
                    reinterpret_cast<const uint16_t*>(values[1] + from), kPanel,
                    reinterpret_cast<uint32_t*>(to));
      else
        pack_values(reinterpret_cast<const uint16_t*>(values[0] + from),
                    reinterpret_cast<const uint16_t*>(values[1] + from), left,
                    reinterpret_cast<uint32_t*>(to));
      to += 4 * kPanel;
    }
  }
}

TARGET inline float gated(float gate, float value) {
  const float silu = gate < -88.0f ? -0.0f : gate / (1.0f + exponential(-gate));
  return silu * value;
}

template <class Value>
TARGET inline void finish_gated(const float* sums, int64_t outputs, Value* y) {
  constexpr int64_t half = kPanel / 2;
  for (int64_t panel = 0; panel < outputs; panel += kPanel)
    for (int64_t i = 0; i < half; ++i)
      y[panel / 2 + i] = as<Value>(gated(sums[panel + i], sums[panel + half + i]));
}

TARGET inline void finish_row(const Tile& t, const float* sums, char* y) {
  auto* floats = reinterpret_cast<float*>(y);
  auto* bfloats = reinterpret_cast<uint16_t*>(y);
  switch (t.finish) {
    case Finish::kFloat32:
      for (int64_t i = 0; i < t.outputs; ++i) floats[i] = sums[i];
      break;
    case Finish::kBfloat16:
      for (int64_t i = 0; i < t.outputs; ++i) bfloats[i] = to_bfloat16(sums[i]);
      break;
    case Finish::kAdd:
    case Finish::kAccumulate:
      for (int64_t i = 0; i < t.outputs; ++i) floats[i] += sums[i];
      break;
    case Finish::kGatedFloat32:
      finish_gated<float>(sums, t.outputs, floats);
      break;
    case Finish::kGatedBfloat16:
      finish_gated<uint16_t>(sums, t.outputs, bfloats);
      break;
  }
}

// sums: [rows][stride]
TARGET inline void finish(const Tile& t, const float* sums, int64_t stride) {
  for (int64_t row = 0; row < t.rows; ++row)
    finish_row(t, sums + row * stride, t.y + row * t.y_stride);
}

constexpr Elementwise kElementwise{norm, rotate, convert, divide, softmax, pack_tile};

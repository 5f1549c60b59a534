// What is done value by value, and what becomes of a tile's sums. Who includes this has defined
// TARGET, the instruction sets of its functions, inside its own namespace.
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

// 16 values at a time, in as many registers as they take.
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
static_assert(sizeof(Floats) == kSumLanes * sizeof(float));

constexpr int64_t kTileLanes = kKeyTile / kSumLanes;

TARGET inline void load(const float* from, Floats& to) { __builtin_memcpy(&to, from, sizeof to); }
TARGET inline void store(const Floats& from, float* to) { __builtin_memcpy(to, &from, sizeof from); }

// As bf16, in the upper halves of fp32: nearest, ties to even; NaN stays NaN.
TARGET inline void round_to_bfloat16(Floats& x) {
  const Ints bits = (Ints)x, nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 << 16;
  x = x == x ? (Floats)nearest : (Floats)(Ints{} + 0x7fc00000);
}

// The upper halves.
TARGET inline void store(const Floats& bfloats, uint16_t* to) {
  typedef uint16_t Halves __attribute__((vector_size(32)));
  const Halves halves = __builtin_convertvector((Ints)bfloats >> 16, Halves);
  __builtin_memcpy(to, &halves, sizeof halves);
}

// 2^x to 2 units in the last place, of x from -126 to 127; 0 below. NaN stays.
// Source of the polynomial: exp2f of the Cephes library, S. Moshier.
TARGET inline void power_of_two(Floats& x) {
  constexpr float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const Floats shifted = x + shift;
  const Floats r = x - (shifted - shift);
  Floats p = r * 1.535336188319500e-4f + 1.339887440266574e-3f;
  p = p * r + 9.618437357674640e-3f;
  p = p * r + 5.550332471162809e-2f;
  p = p * r + 2.402264791363012e-1f;
  p = p * r + 6.931472028550421e-1f;
  p = p * r + 1.0f;
  const Ints bits = (Ints)p + ((Ints)shifted << 23);
  x = x < -126.0f ? Floats{} : x == x ? (Floats)bits : x;
}

TARGET inline void power_of_two(float& x) {
  Floats lanes = {x};
  power_of_two(lanes);
  x = lanes[0];
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

// The largest score of a tile that is larger than `most`, or that; NaN is not.
TARGET inline float largest(const Floats (&scores)[kTileLanes], float most) {
  float lanes[kSumLanes];
  Floats larger_ones = scores[0];
  EACH(i, kTileLanes - 1)
    larger_ones = scores[i + 1] > larger_ones ? scores[i + 1] : larger_ones;
  store(larger_ones, lanes);
  for (int64_t width = kSumLanes / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) lanes[i] = larger(lanes[i + width], lanes[i]);
  return larger(lanes[0], most);
}

// Scores in units of log 2; of keys that are not seen -inf.
TARGET inline void take_scores(const float* from, float factor, int64_t hidden, int64_t seen,
                               Floats (&scores)[kTileLanes]) {
  EACH(i, kTileLanes) {
    load(from + i * kSumLanes, scores[i]);
    scores[i] *= factor;
  }
  if (hidden <= 0 && seen >= kKeyTile) return;
  constexpr Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  EACH(i, kTileLanes) {
    const Ints key = lane + static_cast<int32_t>(i * kSumLanes);
    const Ints is_seen = (key >= static_cast<int32_t>(hidden)) & (key < static_cast<int32_t>(seen));
    scores[i] = is_seen ? scores[i] : Floats{} - __builtin_inff();
  }
}

// Rounds weights to the dtype, and keeps them so.
TARGET inline void give_weights(Floats& weights, int32_t dtype, char* y) {
  if (dtype == kFloat32) {
    store(weights, reinterpret_cast<float*>(y));
    return;
  }
  round_to_bfloat16(weights);
  store(weights, reinterpret_cast<uint16_t*>(y));
}

TARGET inline void softmax_row(const Softmax& s, int64_t row, int32_t dtype) {
  Floats scores[kTileLanes];
  const int64_t further = row / s.group;
  take_scores(s.scores + row * kKeyTile, s.factor, s.hidden + further, s.seen + further, scores);
  const float former = s.most[row], most = largest(scores, former);
  float* attended = s.attended + row * s.dims;
  Floats totals;
  load(s.totals + row * kSumLanes, totals);
  if (most != former) {  // else all of it would be multiplied by 1
    float kept = former - most;
    power_of_two(kept);
    totals *= kept;
    for (int64_t i = 0; i < s.dims; ++i) attended[i] *= kept;
    s.most[row] = most;
  }
  char* weights = s.weights + row * kKeyTile * size_of(dtype);
  EACH(i, kTileLanes) {
    scores[i] -= most;
    power_of_two(scores[i]);
    give_weights(scores[i], dtype, weights + i * kSumLanes * size_of(dtype));
    totals += scores[i];
  }
  store(totals, s.totals + row * kSumLanes);
}

TARGET inline void softmax(const Softmax& s, int32_t dtype) {
  if (dtype == kBfloat16)
    for (int64_t row = 0; row < s.rows; ++row) softmax_row(s, row, kBfloat16);
  else
    for (int64_t row = 0; row < s.rows; ++row) softmax_row(s, row, kFloat32);
}

// x = silu(gate) * x
TARGET inline void gate_by(const Floats& gate, Floats& x) {
  Floats shrunk = gate * -kLog2e;
  power_of_two(shrunk);
  // beyond, the power is too large for fp32
  x *= gate < -87.0f ? -Floats{} : gate / (1.0f + shrunk);
}

template <class Value>
TARGET inline void finish_gated(const float* sums, int64_t outputs, Value* y) {
  for (int64_t panel = 0; panel < outputs; panel += kPanel) {
    Floats gate, x;
    load(sums + panel, gate);
    load(sums + panel + kPanel / 2, x);
    gate_by(gate, x);
    if (sizeof(Value) == 2) round_to_bfloat16(x);
    store(x, y + panel / 2);
  }
}

// What a tile fetches from far, a part in each of its steps.
class Ahead {
 public:
  TARGET Ahead(const Tile& t, int64_t steps)
      : next_(t.ahead[0].from), end_(next_ + t.ahead[0].bytes), then_(t.ahead[1]),
        step_((t.ahead[0].bytes + then_.bytes) / steps) {}

  TARGET void fetch() {
    for (int64_t line = 0; line < step_; line += 64, next_ += 64) {
      if (next_ >= end_) {
        if (then_.bytes == 0) return;
        next_ = then_.from;
        end_ = next_ + then_.bytes;
        then_.bytes = 0;
      }
      __builtin_prefetch(next_, 0, 2);
      asm volatile("");  // gcc leaves out a loop that does nothing but fetch
    }
  }

 private:
  const char *next_, *end_;
  Fetch then_;
  int64_t step_;
};

// Writes a row's `outputs` sums.
TARGET inline void finish_row(Finish finish, const float* sums, int64_t outputs, char* y) {
  auto* floats = reinterpret_cast<float*>(y);
  auto* bfloats = reinterpret_cast<uint16_t*>(y);
  switch (finish) {
    case Finish::kFloat32:
      for (int64_t i = 0; i < outputs; ++i) floats[i] = sums[i];
      break;
    case Finish::kBfloat16:
      for (int64_t i = 0; i < outputs; ++i) bfloats[i] = to_bfloat16(sums[i]);
      break;
    case Finish::kAdd:
      for (int64_t i = 0; i < outputs; ++i) floats[i] += sums[i];
      break;
    case Finish::kGatedFloat32:
      finish_gated<float>(sums, outputs, floats);
      break;
    case Finish::kGatedBfloat16:
      finish_gated<uint16_t>(sums, outputs, bfloats);
      break;
  }
}

// sums: [rows][stride]
TARGET inline void finish(const Tile& t, const float* sums, int64_t stride) {
  for (int64_t row = 0; row < t.rows; ++row)
    finish_row(t.finish, sums + row * stride, t.outputs, t.y + row * t.y_stride);
}

// The fp32 that a value is, as bits without a sign: the larger the value, the larger they are; those of
// infinity and NaN are largest.
TARGET inline int32_t magnitude(float value) {
  int32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffff;
}
TARGET inline int32_t magnitude(uint16_t bfloat) { return (bfloat & 0x7fff) << 16; }

TARGET inline float as_float(float value) { return value; }
TARGET inline float as_float(uint16_t bfloat) { return from_bfloat16(bfloat); }

// Specified by kernels/int8_linear/reference.py.
template <class Value>
TARGET inline void quantise_as(const Value* x, int64_t size, char* row) {
  constexpr int32_t infinity = 0x7f800000, least = 0x04000000;  // 2^-119
  constexpr float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  int32_t bits = 0;
  for (int64_t i = 0; i < size; ++i) bits = magnitude(x[i]) > bits ? magnitude(x[i]) : bits;
  float largest, scale = bits < infinity ? 0.0f : __builtin_nanf("");
  __builtin_memcpy(&largest, &bits, sizeof largest);
  auto* codes = reinterpret_cast<uint8_t*>(row);
  if (bits < infinity && bits >= least) {
    const float inverse = 127.0f / largest;
    scale = largest / 127.0f;
    for (int64_t i = 0; i < size; ++i) {
      const float shifted = as_float(x[i]) * inverse + shift;
      uint32_t rounded;  // whose lowest byte is the code
      __builtin_memcpy(&rounded, &shifted, sizeof rounded);
      codes[i] = static_cast<uint8_t>(rounded + 128);
    }
  } else {
    __builtin_memset(codes, 128, static_cast<size_t>(size));
  }
  __builtin_memcpy(row + padded_depth(size, kInt8), &scale, sizeof scale);
}

TARGET inline void quantise(const char* x, int64_t size, int32_t dtype, char* row) {
  if (dtype == kBfloat16)
    quantise_as(reinterpret_cast<const uint16_t*>(x), size, row);
  else
    quantise_as(reinterpret_cast<const float*>(x), size, row);
}

TARGET inline const PanelScales& scales_after(const char* codes, int64_t depth) {
  return *reinterpret_cast<const PanelScales*>(codes + depth * kPanel);
}

// The values of a panel's int8 sums.
TARGET inline void rescale(const int32_t* sums, const PanelScales& panel, float scale, float* y) {
  for (int64_t i = 0; i < kPanel; ++i)
    y[i] = static_cast<float>(sums[i] - panel.offsets[i]) * scale * panel.scales[i];
}

TARGET inline float scale_of(const char* row, int64_t depth) {
  float scale;
  __builtin_memcpy(&scale, row + depth, sizeof scale);
  return scale;
}

TARGET inline void subtract_codes(float* x, int64_t size, const char* row) {
  const float scale = scale_of(row, padded_depth(size, kInt8));
  const auto* codes = reinterpret_cast<const uint8_t*>(row);
  for (int64_t i = 0; i < size; ++i) x[i] -= static_cast<float>(codes[i] - 128) * scale;
}

// Of an int8 product; sums: [rows][stride]
TARGET inline void finish(const Tile& t, const int32_t* sums, int64_t stride) {
  alignas(64) float values[2 * kPanel];
  for (int64_t row = 0; row < t.rows; ++row) {
    const float scale = scale_of(t.x + row * t.x_stride, t.depth);
    for (int64_t at = 0; at < stride; at += kPanel)
      rescale(sums + row * stride + at, scales_after(t.halves[at / kHalf], t.depth), scale,
              values + at);
    finish_row(t.finish, values, t.outputs, t.y + row * t.y_stride);
  }
}

constexpr Elementwise kElementwise{
    norm, rotate, convert, divide, softmax, quantise, subtract_codes};

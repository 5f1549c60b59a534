// What is done value by value, and what becomes of a tile's sums. Who includes this has defined
// TARGET, the instruction sets of its functions, inside its own namespace.
//
// Plain loops, which compilers turn into vectors. Each product and each sum is rounded, and a sum of
// many goes into 16 lanes that are added in one order, so that all levels have the same bits.

constexpr int64_t kLanes = 16;

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
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  __builtin_memcpy(&power, &bits, sizeof power);
  return p * power;
}

TARGET inline float added(const float (&lanes)[kLanes]) {
  float sums[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) sums[i] = lanes[i];
  for (int64_t width = kLanes / 2; width > 0; width /= 2)
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

template <class Value>
TARGET inline void scale(const float* x, const float* weight, int64_t size, float root, Value* y) {
  for (int64_t i = 0; i < size; ++i) y[i] = as<Value>(x[i] * root * weight[i]);
}

TARGET inline void norm(const float* x, const float* weight, int64_t size, float eps, int32_t dtype,
                        char* y) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
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

TARGET inline void softmax(const Softmax& s, int32_t dtype) {
  float scores[kKeyTile], lanes[kLanes];
  constexpr float lowest = -__builtin_inff();
  for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = lowest;
  for (int64_t key = 0; key < kKeyTile; ++key)
    scores[key] = key >= s.first && key < s.last ? s.scores[key] * s.scale : lowest;
  for (int64_t key = 0; key < kKeyTile; key += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = larger(scores[key + lane], lanes[lane]);
  float most = *s.most;
  for (int64_t lane = 0; lane < kLanes; ++lane) most = larger(lanes[lane], most);
  for (int64_t key = 0; key < kKeyTile; ++key) scores[key] = exponential(scores[key] - most);
  for (int64_t key = 0; key < kKeyTile; ++key)
    scores[key] = key >= s.first && key < s.last ? scores[key] : 0.0f;
  if (dtype == kBfloat16) {
    auto* weights = reinterpret_cast<uint16_t*>(s.weights);
    for (int64_t key = 0; key < kKeyTile; ++key) weights[key] = to_bfloat16(scores[key]);
    for (int64_t key = 0; key < kKeyTile; ++key) scores[key] = from_bfloat16(weights[key]);
  } else {
    auto* weights = reinterpret_cast<float*>(s.weights);
    for (int64_t key = 0; key < kKeyTile; ++key) weights[key] = scores[key];
  }
  float sums[kLanes] = {};
  for (int64_t key = 0; key < kKeyTile; key += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += scores[key + lane];
  const float kept = exponential(*s.most - most);
  *s.total = *s.total * kept + added(sums);
  for (int64_t i = 0; i < s.dims; ++i) s.attended[i] *= kept;
  *s.most = most;
}

TARGET inline float gated(float gate, float value) {
  return gate / (1.0f + exponential(-gate)) * value;
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

constexpr Elementwise kElementwise{norm, rotate, convert, softmax};

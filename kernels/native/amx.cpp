// AMX: an instruction multiplies tiles of 16 rows, 32 inputs and 16 outputs. fp32 as in AVX-512.
#include "level.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET \
  __attribute__((target( \
      "amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma," \
      "prefer-vector-width=512")))

namespace cadenza {
namespace {

#include "avx512_transpose.h"

#include "elementwise.h"

constexpr int64_t kTileRows = 16, kTileInputs = 32;
constexpr int64_t kStepBytes = kPanel * kTileInputs * 2;  // of a panel

// Registers 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 the halves of a panel.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  TileConfig(int64_t first_rows, int64_t second_rows) {
    set(0, first_rows), set(1, first_rows), set(4, first_rows);
    set(2, second_rows), set(3, second_rows), set(5, second_rows);
    set(6, kTileRows), set(7, kTileRows);
  }

  void set(int number, int64_t count) {
    rows[number] = static_cast<uint8_t>(count);
    row_bytes[number] = count ? 64 : 0;
  }
};

TARGET inline void prefetch(const char* weight) {
  for (int64_t line = 0; line < kStepBytes; line += 64)
    _mm_prefetch(weight + kStepBytes + line, _MM_HINT_T0);
}

TARGET void begin(int64_t rows) {
  const bool two = rows > kTileRows;
  const TileConfig config(two ? kTileRows : rows, two ? rows - kTileRows : 0);
  // gcc takes only its first bytes for read
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

TARGET void end() { _tile_release(); }

// Registers 0 to 3, as fp32.
template <bool TWO>
TARGET void store(char* y, int64_t stride) {
  _tile_stored(0, y, stride);
  _tile_stored(1, y + 64, stride);
  if (TWO) {
    _tile_stored(2, y + kTileRows * stride, stride);
    _tile_stored(3, y + kTileRows * stride + 64, stride);
  }
}

// Sums begin with what is there.
template <bool TWO>
TARGET void load(const char* y, int64_t stride) {
  _tile_loadd(0, y, stride);
  _tile_loadd(1, y + 64, stride);
  if (TWO) {
    _tile_loadd(2, y + kTileRows * stride, stride);
    _tile_loadd(3, y + kTileRows * stride + 64, stride);
  }
}

template <bool TWO>
TARGET void clear() {
  _tile_zero(0);
  _tile_zero(1);
  if (TWO) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

template <bool TWO>
TARGET void multiply(const Tile& t) {
  const char* weight = t.weight;
  const char* x = t.x;
  for (int64_t input = 0; input < t.depth; input += kTileInputs) {
    if (t.is_ahead) prefetch(weight);
    _tile_loadd(6, weight, 2 * 64);
    _tile_loadd(4, x, t.x_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weight + 64, 2 * 64);
    _tile_dpbf16ps(1, 4, 7);
    if (TWO) {
      _tile_loadd(5, x + kTileRows * t.x_stride, t.x_stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    weight += kStepBytes;
    x += 2 * kTileInputs;
  }
}

template <bool TWO>
TARGET void tile_of(const Tile& t) {
  // which way a sum goes depends on its output alone, never on the rows
  const bool is_whole = t.outputs == kPanel;
  const bool is_onto = is_whole && t.finish == Finish::kAccumulate;
  if (is_onto)
    load<TWO>(t.y, t.y_stride);
  else
    clear<TWO>();
  multiply<TWO>(t);
  if (is_onto || (is_whole && t.finish == Finish::kFloat32)) {
    store<TWO>(t.y, t.y_stride);
    return;
  }
  alignas(64) float sums[2 * kTileRows][kPanel];
  store<TWO>(reinterpret_cast<char*>(sums), sizeof sums[0]);
  finish(t, &sums[0][0], kPanel);
}

void tile(const Tile& t) { (t.rows > kTileRows ? tile_of<true> : tile_of<false>)(t); }

}  // namespace

const Level* amx_level() {
  static const Level level{
      "amx",
      {avx512_level()->kernels[kFloat32], {2 * kTileRows, 0, tile, begin, end}},
      kElementwise,
  };
  return &level;
}

}  // namespace cadenza

#else

namespace cadenza {
const Level* amx_level() { return nullptr; }
}  // namespace cadenza

#endif

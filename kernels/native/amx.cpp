// AMX: an instruction multiplies tiles of 16 rows, 32 inputs of bf16 or 64 of int8, and 16 outputs. fp32
// as in AVX-512.
#include "compact.h"
#include "level.h"
#include "memory.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET \
  __attribute__((target( \
      "amx-tile,amx-bf16,amx-int8,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma," \
      "prefer-vector-width=512")))

namespace cadenza {
namespace {

#include "elementwise.h"
#include "compact_avx512.h"

constexpr int64_t kTileRows = 16, kTileBytes = 64;  // of x

// Registers 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 the halves of a panel.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  explicit TileConfig(int64_t count) {
    const int64_t first_rows = count < kTileRows ? count : kTileRows;
    const int64_t second_rows = count - first_rows;
    set(0, first_rows), set(1, first_rows), set(4, first_rows);
    set(2, second_rows), set(3, second_rows), set(5, second_rows);
    set(6, kTileRows), set(7, kTileRows);
  }

  void set(int number, int64_t count) {
    rows[number] = static_cast<uint8_t>(count);
    row_bytes[number] = count ? 64 : 0;
  }
};

// For how many rows a thread's registers are prepared: of a product's tile, or of queries.
thread_local int64_t tile_rows = 0, unit_rows = 0;

template <class Config>
TARGET void prepare(int64_t rows, int64_t& prepared) {
  if (rows == prepared) return;
  const Config config(rows);
  // gcc takes only its first bytes for read
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
  prepared = rows;
}

// Registers 0 to 3, as fp32, of int8 products int32.
template <bool TWO>
TARGET void store(char* y, int64_t stride) {
  _tile_stored(0, y, stride);
  _tile_stored(1, y + 64, stride);
  if (TWO) {
    _tile_stored(2, y + kTileRows * stride, stride);
    _tile_stored(3, y + kTileRows * stride + 64, stride);
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

// A tile's sums, whose finish waits for the next tile: while the matrix unit multiplies, the rest of
// the processor has little else to do.
struct Waiting {
  union {
    alignas(64) float sums[2 * kTileRows][kPanel];
    int32_t codes[2 * kTileRows][kPanel];  // of an int8 product: their sums
  };
  char* y;  // of the next row
  int64_t y_stride, outputs, row, rows;
  Finish finish;
  const PanelScales* scales;  // null: not of an int8 product
  const char* scale;          // of the next row of x
  int64_t x_stride;

  TARGET void take(const Tile& t, int32_t dtype) {
    y = t.y;
    y_stride = t.y_stride;
    outputs = t.outputs;
    finish = t.finish;
    row = 0;
    rows = t.rows;
    scales = dtype == kInt8 ? &scales_after(t.halves[0], t.depth) : nullptr;
    scale = t.x + t.depth;
    x_stride = t.x_stride;
  }

  TARGET void finish_some(int64_t count) {
    const int64_t last = row + count < rows ? row + count : rows;
    for (; row < last; ++row, y += y_stride) {
      alignas(64) float values[kPanel];
      const float* of_row = sums[row];
      if (scales != nullptr) {
        rescale(codes[row], *scales, scale_of(scale, 0), values);
        of_row = values;
        scale += x_stride;
      }
      if (outputs == kPanel)  // most often: a constant makes loops without a remainder
        finish_row(finish, of_row, kPanel, y);
      else
        finish_row(finish, of_row, outputs, y);
    }
  }
};

thread_local Waiting waiting{};

TARGET void end() {
  waiting.finish_some(waiting.rows);
  waiting.rows = 0;
  tile_rows = 0;
  _tile_release();
}

// Adds the products of two registers to a third one; all are numbers.
#define ADD_PRODUCTS(sums, x, weights)     \
  if constexpr (DTYPE == kInt8) {          \
    _tile_dpbusd(sums, x, weights);        \
  } else {                                 \
    _tile_dpbf16ps(sums, x, weights);      \
  }

// Where the halves of a panel lie that was not made compact.
struct Plain {
  const char *first, *second;
  int64_t stride;

  TARGET explicit Plain(const Tile& t) : first(t.halves[0]), second(t.halves[1]), stride(t.stride) {}
  TARGET explicit Plain(const char* panel)
      : first(panel), second(panel + kHalfBytes), stride(2 * kHalfBytes) {}

  TARGET void advance() {
    first += kTileRows * stride;
    second += kTileRows * stride;
  }
};

constexpr int64_t kPlainBytes = 2 * kGroupValues;  // of a group
constexpr int64_t kKept = 4, kLead = 2;            // groups

// A compact panel that is made plain some groups ahead: what was written a moment ago cannot be
// loaded into a tile at once. It is made so in `plain`, for the next tile, or where only a few groups are kept.
class Compact {
 public:
  const char *first, *second;
  static constexpr int64_t stride = 2 * kHalfBytes;

  TARGET Compact(const Tile& t, char* plain)
      : unpacking_(t.halves[0], t.depth), plain_(plain != nullptr ? plain : kept_),
        mask_(plain != nullptr ? -1 : kKept - 1) {
    for (int64_t i = 0; i < kLead; ++i) unpack();
    at(0);
  }

  TARGET void advance() {
    unpack();
    at(++group_);
  }

 private:
  TARGET char* place(int64_t group) { return plain_ + (group & mask_) * kPlainBytes; }
  TARGET void at(int64_t group) {
    first = place(group);
    second = first + kHalfBytes;
  }
  TARGET void unpack() { unpacking_.next(place(unpacked_++)); }

  Unpacking unpacking_;
  char* plain_;
  int64_t mask_, group_ = 0, unpacked_ = 0;
  alignas(64) char kept_[kKept * kPlainBytes];
};

template <int32_t DTYPE, bool TWO, class Panel>
TARGET void multiply(const Tile& t, Panel& panel, Waiting& former) {
  const char* x = t.x;
  const int64_t steps = t.depth * size_of(DTYPE) / kTileBytes;
  Ahead ahead(t, steps);
  const int64_t finish_step = (former.rows + steps - 1) / steps;
  for (int64_t step = 0; step < steps; ++step) {
    ahead.fetch();
    _tile_loadd(6, panel.first, panel.stride);
    _tile_loadd(4, x, t.x_stride);
    ADD_PRODUCTS(0, 4, 6);
    _tile_loadd(7, panel.second, panel.stride);
    ADD_PRODUCTS(1, 4, 7);
    if (TWO) {
      _tile_loadd(5, x + kTileRows * t.x_stride, t.x_stride);
      ADD_PRODUCTS(2, 5, 6);
      ADD_PRODUCTS(3, 5, 7);
    }
    panel.advance();
    x += kTileBytes;
    if (former.row < former.rows) former.finish_some(finish_step);
  }
}

#undef ADD_PRODUCTS

// A panel that is made plain once for several tiles.
class PlainPanel {
 public:
  // Before its first tile.
  void begin(const Tile& t) { values_ = t.is_last ? nullptr : room(t.depth); }

  // Null: each tile makes it plain for itself. So it is for one alone, or where there is no memory.
  char* values() const { return values_; }

 private:
  char* room(int64_t depth) {
    const int64_t bytes = depth * kPanel * 2;
    if (bytes > bytes_) {
      bytes_ = 0;
      memory_.reset();
      try {
        memory_ = allocate(bytes);
        bytes_ = bytes;
      } catch (const std::bad_alloc&) {
      }
    }
    return memory_.get();
  }

  Memory memory_;
  int64_t bytes_ = 0;
  char* values_ = nullptr;
};

thread_local PlainPanel plain_panel;

template <bool TWO>
TARGET void multiply_compact(const Tile& t, Waiting& former) {
  if (t.is_first) plain_panel.begin(t);
  char* const plain = plain_panel.values();
  if (t.is_first || plain == nullptr) {
    Compact panel(t, plain);
    multiply<kCompactBfloat16, TWO>(t, panel, former);
  } else {
    Plain panel(plain);
    multiply<kCompactBfloat16, TWO>(t, panel, former);
  }
}

template <int32_t DTYPE, bool TWO>
TARGET void tile_of(const Tile& t) {
  prepare<TileConfig>(t.rows, tile_rows);
  clear<TWO>();
  Waiting& former = waiting;
  if constexpr (DTYPE == kCompactBfloat16) {
    multiply_compact<TWO>(t, former);
  } else {
    Plain panel(t);
    multiply<DTYPE, TWO>(t, panel, former);
  }
  if (DTYPE != kInt8 && t.finish == Finish::kFloat32 && t.outputs == kPanel) {
    former.rows = 0;
    store<TWO>(t.y, t.y_stride);
    return;
  }
  former.take(t, DTYPE);
  store<TWO>(reinterpret_cast<char*>(former.sums), sizeof former.sums[0]);
}

template <int32_t DTYPE>
void tile(const Tile& t) {
  (t.rows > kTileRows ? tile_of<DTYPE, true> : tile_of<DTYPE, false>)(t);
}

// Scores: registers 0 to 3 hold those of four units, 4 queries, 6 keys. Weighted sums: 0 to 3 hold
// those of 64 dims, 5 the weights of a unit, 7 its values. Rows of 0 to 5 are queries.
struct alignas(64) UnitConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 32, 64, 64};
  uint8_t rows[16] = {};

  explicit UnitConfig(int64_t count) {
    for (int number = 0; number < 6; ++number) rows[number] = static_cast<uint8_t>(count);
    rows[6] = 16;
    rows[7] = kUnit / 2;
  }
};

TARGET void end_units() {
  unit_rows = 0;
  _tile_release();
}

// The first COUNT of registers 0 to 3.
#define EACH_SUM(COUNT, DO) \
  DO(0);                    \
  if (COUNT > 1) DO(1);     \
  if (COUNT > 2) DO(2);     \
  if (COUNT > 3) DO(3)

template <int UNITS>
TARGET void scores_of(const Scores& s, int64_t row) {
  EACH_SUM(UNITS, _tile_zero);
  const int64_t stride = s.dims * 2;
  const char* queries = s.queries + row * stride;
  for (int64_t at = 0; at < kUnit * s.dims * 2; at += 16 * 64) {
    _tile_loadd(4, queries, stride);
    queries += 64;
#define ADD(unit) { _tile_loadd(6, s.units[unit] + at, 64); _tile_dpbf16ps(unit, 4, 6); }
    EACH_SUM(UNITS, ADD);
#undef ADD
  }
  float* scores = s.scores + row * kKeyTile;
#define STORE(unit) _tile_stored(unit, scores + unit * kUnit, kKeyTile * sizeof(float))
  EACH_SUM(UNITS, STORE);
#undef STORE
}

TARGET void scores(const Scores& s) {
  static constexpr void (*by_units[])(const Scores&, int64_t) = {
      scores_of<1>, scores_of<2>, scores_of<3>, scores_of<4>};
  for (int64_t row = 0; row < s.rows; row += kTileRows) {
    prepare<UnitConfig>(s.rows - row < kTileRows ? s.rows - row : kTileRows, unit_rows);
    by_units[s.num_units - 1](s, row);
  }
}

template <int HALVES>
TARGET void weigh_of(const Weighing& w, int64_t row, int64_t dim) {
  const int64_t stride = w.dims * static_cast<int64_t>(sizeof(float));
  float* attended = w.attended + row * w.dims + dim;
#define LOAD(half) _tile_loadd(half, attended + half * kHalf, stride)
  EACH_SUM(HALVES, LOAD);
#undef LOAD
  const char* weights = w.weights + row * kKeyTile * 2;
  for (int64_t unit = 0; unit < w.num_units; ++unit) {
    _tile_loadd(5, weights + unit * kUnit * 2, kKeyTile * 2);
    const char* values = w.units[unit] + dim * 4;
#define ADD(half) { _tile_loadd(7, values + half * kHalfBytes, stride); _tile_dpbf16ps(half, 5, 7); }
    EACH_SUM(HALVES, ADD);
#undef ADD
  }
#define STORE(half) _tile_stored(half, attended + half * kHalf, stride)
  EACH_SUM(HALVES, STORE);
#undef STORE
}

TARGET void weigh(const Weighing& w) {
  for (int64_t row = 0; row < w.rows; row += kTileRows) {
    prepare<UnitConfig>(w.rows - row < kTileRows ? w.rows - row : kTileRows, unit_rows);
    int64_t dim = 0;
    for (; dim + 4 * kHalf <= w.dims; dim += 4 * kHalf) weigh_of<4>(w, row, dim);
    if (dim < w.dims) weigh_of<2>(w, row, dim);
  }
}

#undef EACH_SUM

}  // namespace

const Level* amx_level() {
  static const Level level{
      "amx",
      {avx512_level()->kernels[kFloat32],
       {2 * kTileRows, 0, tile<kBfloat16>, end},
       {2 * kTileRows, 0, tile<kInt8>, end},
       {2 * kTileRows, 0, tile<kCompactBfloat16>, end}},
      {{}, {scores, weigh, end_units}},
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

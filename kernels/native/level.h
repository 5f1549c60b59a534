// What the levels of instruction sets offer.
//
// A weight lies in panels of 32 outputs, the last one padded with zeros:
//   fp32 [outputs / 32][inputs][32], bf16 [outputs / 32][inputs / 2][32][2],
//   int8 [outputs / 32]([inputs / 4][32][4], PanelScales),
//   bf16 in 12 bits: see compact.h.
// A tile is a few rows by one or two panels. Whoever computes it takes the inputs in ascending order
// into one fp32 sum an output, so that a sum depends neither on the tile's shape nor on the thread.
//
// Int8 products multiply codes: of a weight from -127 to 127, of a row of x likewise but stored with
// 128 added, because that is what most instructions take; the row's scale follows its codes, fp32.
// Sums of such products are whole numbers, the same in any order and at any level. What the 128 have
// added is taken away again, and both scales are applied in fp32.
//
// Keys and values lie in the cache as products take them, in units of 16 tokens of one KV head:
//   keys    fp32 [dims][16],  bf16 [dims / 2][16][2]
//   values  fp32 [16][dims],  bf16 [8][dims][2]
#pragma once

#include <cstddef>
#include <cstdint>

namespace cadenza {

constexpr int64_t kPanel = 32;       // outputs a panel
constexpr int64_t kHalf = 16;        // outputs that lie side by side, anywhere
constexpr int64_t kHalfBytes = 64;   // of an input in fp32, of two in bf16, or of four in int8
constexpr int64_t kUnit = 16;        // tokens a unit
constexpr int64_t kBf16Depth = 32;   // inputs of packed bf16 weights are padded to a multiple
constexpr int64_t kInt8Depth = 64;   // and those of int8 weights

enum Dtype : int32_t { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2, kCompactBfloat16 = 3 };
constexpr int kDtypes = 4;  // the last two of weights alone, whose products take x in int8 and bf16

// What makes values of a panel's int8 sums.
struct PanelScales {
  float scales[kPanel];
  int32_t offsets[kPanel];  // 128 times the sum of an output's codes
};

// What becomes of a tile's sums. Add: they are added to what is there. Gated: of each 32 outputs the
// first 16 are gates, whose silu multiplies the other 16, so that 16 values are written.
enum class Finish : int32_t {
  kFloat32,
  kBfloat16,
  kAdd,
  kGatedFloat32,
  kGatedBfloat16,
};

inline Finish stored_as(int32_t dtype) { return static_cast<Finish>(dtype); }
inline Finish gated_as(int32_t dtype) {
  return dtype == kBfloat16 ? Finish::kGatedBfloat16 : Finish::kGatedFloat32;
}

// What is fetched while something else is computed, since it comes from far.
struct Fetch {
  const char* from;
  int64_t bytes;
};

struct Tile {
  const char* x;       // first row
  int64_t x_stride;    // bytes
  const char* halves[4];  // of the weight: two, or four where outputs are more than a panel; one, the
                          // panel, where it is compact
  int64_t stride;      // bytes from a half's inputs, 1, 2 or 4 by dtype, to the next ones
  int64_t depth;       // inputs; those of x and of the weight are padded to the level's multiple
  char* y;             // first row and output
  int64_t y_stride;    // bytes
  int64_t rows;
  int64_t outputs;     // at most 64: no more are written
  Finish finish;
  Fetch ahead[2];      // the first one first
  bool is_first = true, is_last = true;  // of the tiles with this weight, which a thread computes in turn
};

using TileFunction = void (*)(const Tile&);

// How a level multiplies one dtype.
struct Kernel {
  int64_t narrow_rows;  // most rows of a tile of one panel
  int64_t wide_rows;    // most rows of a tile of two panels; 0: there are none
  TileFunction tile;
  void (*end)() = nullptr;  // comes after a thread's last tile; null: nothing is to be done
};

// Some queries' part in a tile of keys: scores become weights, and what was attended so far is scaled
// to the largest score that is known now.
struct Softmax {
  const float* scores;  // [rows][kKeyTile]
  int64_t rows;
  int64_t hidden, seen;  // the first query sees the keys from `hidden` to `seen`, and those of the
  int64_t group;         // next `group` rows one key further on
  float factor;         // of the scores, to the base 2
  char* weights;        // [rows][kKeyTile], of the dtype; 0 where not seen
  float* most;          // [rows], largest score so far times factor; -inf at first
  float* totals;        // [rows][kSumLanes], whose sum is that of the weights so far
  float* attended;      // [rows][dims], weighted sum of values so far
  int64_t dims;
};

// Attended values, divided by the sum of their weights.
struct Division {
  const float* attended;  // [dims]
  const float* totals;    // [kSumLanes]
  int64_t dims;
  char* y;                // [dims], of the dtype
};

struct Rotation {
  const float* x;       // [2 * half], one head
  const float* cos;     // [half]
  const float* sin;     // [half]
  int64_t half;
  char* y;              // [2 * half], of the dtype
};

// A tile of keys against some queries of one head.
struct Scores {
  const char* queries;  // [rows][dims]
  int64_t rows;
  int64_t dims;  // a multiple of 32, as in what follows
  const char* const* units;  // of keys
  int64_t num_units;         // at most kTileUnits
  float* scores;             // [rows][kKeyTile]; of units that there are
};

// A tile's values, added up with some queries' weights.
struct Weighing {
  const char* weights;  // [rows][kKeyTile], of the dtype
  int64_t rows;
  int64_t dims;
  const char* const* units;  // of values
  int64_t num_units;
  float* attended;  // [rows][dims], which is added to
};

// How a level computes both. After the last ones comes `end`; null: nothing is to be done.
struct UnitKernel {
  void (*scores)(const Scores&);
  void (*weigh)(const Weighing&);
  void (*end)();
};

// What is done value by value, the same on all levels.
struct Elementwise {
  // y = x / sqrt(mean(x²) + eps) * weight for x [size], in the dtype.
  void (*norm)(const float* x, const float* weight, int64_t size, float eps, int32_t dtype, char* y);
  void (*rotate)(const Rotation&, int32_t dtype);
  // x [size] in the dtype.
  void (*convert)(const float* x, int64_t size, int32_t dtype, char* y);
  void (*divide)(const Division&, int32_t dtype);
  void (*softmax)(const Softmax&, int32_t dtype);
  // x [size] in the dtype -> codes and their scale, as a row of an int8 product.
  void (*quantise)(const char* x, int64_t size, int32_t dtype, char* row);
  // x [size] becomes what the codes of a row leave of it.
  void (*subtract_codes)(float* x, int64_t size, const char* row);
};

struct Level {
  const char* name;
  Kernel kernels[kDtypes];  // by Dtype; that of compact weights may have no tile
  UnitKernel unit_kernels[2];
  Elementwise elementwise;
};

// Each returns null where it was not compiled; whether this machine may run it is cpu.cpp's to say.
const Level* portable_level();
const Level* avx2_level();
const Level* avx512_level();
const Level* avx512_vnni_level();
const Level* avx512_bf16_level();
const Level* amx_level();

constexpr int64_t kKeyTile = 64;  // keys that a query attends to at a time
constexpr int64_t kTileUnits = kKeyTile / kUnit;
constexpr float kLog2e = 1.44269504f;
constexpr int64_t kSumLanes = 16;    // a sum of many values is so many sums, added at the end

inline bool is_bfloat16(int32_t dtype) { return dtype == kBfloat16 || dtype == kCompactBfloat16; }

// Of a value of x, or of what becomes of it.
inline int64_t size_of(int32_t dtype) { return is_bfloat16(dtype) ? 2 : dtype == kInt8 ? 1 : 4; }

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Inputs of a packed weight, with the zeros at their end.
inline int64_t padded_depth(int64_t inputs, int32_t dtype) {
  return is_bfloat16(dtype) ? round_up(inputs, kBf16Depth)
         : dtype == kInt8   ? round_up(inputs, kInt8Depth)
                            : inputs;
}

// Bytes that products read of a row of x.
inline int64_t row_bytes(int64_t inputs, int32_t dtype) {
  const int64_t scale = dtype == kInt8 ? sizeof(float) : 0;
  return padded_depth(inputs, dtype) * size_of(dtype) + scale;
}

}  // namespace cadenza

// A short loop without a jump: only so do compilers keep arrays of sums in registers.
#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); ++i)

// What the files of the matrix products share.
//
// A weight lies in panels of 32 outputs, the last one padded with zeros:
//   fp32 [outputs / 32][inputs][32], bf16 [outputs / 32][inputs / 2][32][2].
// A tile is a few rows by one or two panels. Whoever computes it takes the inputs in ascending order
// into one fp32 sum an output, so that a sum depends neither on the tile's shape nor on the thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cadenza {

constexpr int64_t kPanel = 32;       // outputs a panel
constexpr int64_t kMaxTileRows = 32; // of any level
constexpr int64_t kBf16Depth = 32;   // inputs of packed bf16 weights are padded to a multiple

enum Dtype : int32_t { kFloat32 = 0, kBfloat16 = 1 };

struct Tile {
  const char* x;       // first row
  int64_t x_stride;    // bytes
  const char* weight;  // first panel
  int64_t panel_bytes;
  int64_t depth;       // inputs; those of x and of the weight are padded to the level's multiple
  char* y;             // first row and output
  int64_t y_stride;    // bytes
  int64_t rows;
  int64_t outputs;     // at most 64: no more are written
};

using TileFunction = void (*)(const Tile&);

// How a level multiplies one dtype.
struct Kernel {
  int64_t narrow_rows;      // most rows of a tile of one panel
  int64_t wide_rows;        // most rows of a tile of two panels; 0: there are none
  int64_t depth_multiple;   // inputs of x have to be padded to
  TileFunction tile;
};

struct Level {
  const char* name;
  Kernel kernels[2];  // by Dtype
};

// Each returns null where it was not compiled; whether this machine may run it is cpu.cpp's to say.
const Level* portable_level();
const Level* avx2_level();
const Level* avx512_level();
const Level* avx512_bf16_level();
const Level* amx_level();

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Nearest, ties to even; NaN stays NaN.
inline uint16_t to_bfloat16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace cadenza

// A short loop without a jump: only so do compilers keep arrays of sums in registers.
#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); ++i)

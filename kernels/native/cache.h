// One layer of the paged KV cache, whose blocks hold units of 16 tokens; see level.h.
#pragma once

#include <cstring>

#include "level.h"

namespace cadenza {

// A block: keys [kv_heads][block_size / 16] units, and values likewise.
struct Cache {
  char* blocks;
  int64_t block_bytes;  // from a block to the next
  int64_t block_size;   // tokens, a multiple of kUnit
  int64_t kv_heads, dims;
  int32_t dtype;

  int64_t unit_bytes() const { return kUnit * dims * size_of(dtype); }

  // The unit with the token at `offset` of the block.
  char* keys(int64_t block, int64_t offset, int64_t head) const {
    const int64_t units = block_size / kUnit;
    return blocks + block * block_bytes + (head * units + offset / kUnit) * unit_bytes();
  }
  char* values(int64_t block, int64_t offset, int64_t head) const {
    return keys(block, offset, head) + kv_heads * block_size / kUnit * unit_bytes();
  }

  // x: [dims], of the dtype
  void put_key(char* unit, int64_t offset, const char* x) const {
    char* to = unit + offset % kUnit * 4;  // an input of fp32, or two of bf16
    for (int64_t i = 0; i < dims * size_of(dtype); i += 4) std::memcpy(to + i * kUnit, x + i, 4);
  }
  void put_value(char* unit, int64_t offset, const char* x) const {
    char* to = value(unit, offset % kUnit);
    if (dtype == kFloat32) {
      std::memcpy(to, x, static_cast<size_t>(dims * 4));
      return;
    }
    for (int64_t i = 0; i < 2 * dims; i += 2) std::memcpy(to + 2 * i, x + i, 2);
  }

  // Sets the values of a unit to 0 from a token on.
  void clear_values(char* unit, int64_t from) const {
    if (dtype == kBfloat16 && from % 2 != 0)
      for (int64_t i = 0; i < dims; ++i) std::memset(value(unit, from) + 4 * i, 0, 2);
    const int64_t left = dtype == kBfloat16 ? round_up(from, 2) : from;
    const int64_t begin = left * dims * size_of(dtype);
    std::memset(unit + begin, 0, static_cast<size_t>(unit_bytes() - begin));
  }

 private:
  // The first value of a token.
  char* value(char* unit, int64_t token) const {
    if (dtype == kFloat32) return unit + token * dims * 4;
    return unit + token / 2 * dims * 4 + token % 2 * 2;
  }
};

}  // namespace cadenza

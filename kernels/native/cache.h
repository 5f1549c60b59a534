// One layer of the paged KV cache.
#pragma once

#include <cstring>

#include "level.h"

namespace cadenza {

// A block has keys [kv_heads][block_size / 16] units of 16 tokens, see level.h, and values likewise;
// a block too small for that [kv_heads][block_size][dims], of which units are made as they are needed.
struct Cache {
  char* blocks;
  int64_t block_bytes;  // from a block to the next
  int64_t block_size;   // tokens, a power of two
  int64_t kv_heads, dims;
  int32_t dtype;

  bool has_units() const { return block_size >= kUnit; }
  int64_t token_bytes() const { return dims * size_of(dtype); }
  int64_t unit_bytes() const { return kUnit * token_bytes(); }

  // The unit with the token at `offset` of the block, or the token, where there are no units.
  char* keys(int64_t block, int64_t offset, int64_t head) const {
    const int64_t first = has_units() ? offset / kUnit * kUnit : offset;
    return blocks + block * block_bytes + (head * block_size + first) * token_bytes();
  }
  char* values(int64_t block, int64_t offset, int64_t head) const {
    return keys(block, offset, head) + kv_heads * block_size * token_bytes();
  }

  // x: [dims], of the dtype
  void put(int64_t block, int64_t offset, int64_t head, const char* key, const char* value) const {
    char *to_keys = keys(block, offset, head), *to_values = values(block, offset, head);
    if (has_units()) {
      put_key(to_keys, offset % kUnit, key);
      put_value(to_values, offset % kUnit, value);
    } else {
      std::memcpy(to_keys, key, static_cast<size_t>(token_bytes()));
      std::memcpy(to_values, value, static_cast<size_t>(token_bytes()));
    }
  }

  // Puts a token in its place in a unit.
  void put_key(char* unit, int64_t token, const char* x) const {
    char* to = unit + token * 4;  // an input of fp32, or two of bf16
    for (int64_t i = 0; i < token_bytes(); i += 4) std::memcpy(to + i * kUnit, x + i, 4);
  }
  void put_value(char* unit, int64_t token, const char* x) const {
    char* to = value(unit, token);
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

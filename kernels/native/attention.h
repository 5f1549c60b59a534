// Causal attention of new tokens over keys and values that lie in cache blocks.
#pragma once

#include "cache.h"
#include "level.h"

namespace cadenza {

// What is attended to by which rows. Rows' new tokens lie one after another.
struct Attention {
  const Level* level;
  int32_t dtype;  // of queries, cache and result
  int64_t heads, kv_heads, head_dim;
  float scale;     // of the scores, before the softmax
  int64_t window;  // keys that a query sees, itself included; 0: all before it
  Cache cache;
  int64_t rows;
  const int32_t* num_context;  // [rows], tokens before the new ones
  const int32_t* num_new;      // [rows]
  const int32_t* tables;       // [rows][table_width], blocks in sequence order
  int64_t table_width;
  const char* queries;  // [tokens][heads][head_dim]
  char* attended;       // the same, but `attended_stride` bytes a token
  int64_t attended_stride;

  // Computes it on at most `threads` threads; std::bad_alloc.
  void run(int32_t threads) const;
};

// A head may be so large.
constexpr int64_t kMostHeadDim = 256;

}  // namespace cadenza

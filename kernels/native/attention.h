// Causal attention of new tokens over keys and values that lie in cache blocks.
#pragma once

#include "level.h"

namespace cadenza {

// One layer of the paged cache: [blocks][2][block_size][kv_heads][head_dim], keys before values.
struct Cache {
  char* blocks;
  int64_t block_bytes;  // from a block to the next
  int64_t block_size;   // tokens

  char* token(int64_t block, int64_t offset, int side, int64_t token_bytes) const {
    return blocks + block * block_bytes + (side * block_size + offset) * token_bytes;
  }
};

// What is attended to by which rows. Rows' new tokens lie one after another.
struct Attention {
  const Level* level;
  int32_t dtype;  // of queries, cache and result
  int64_t heads, kv_heads, head_dim;
  float scale;  // of the scores, before the softmax
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

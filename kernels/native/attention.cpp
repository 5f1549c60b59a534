// Attention in tiles of 64 keys, counted from the sequence's first, with an online softmax. A query
// meets each tile in the same way whatever else is computed beside it: alone, in a batch, in a chunk.
//
// Keys and values of a tile are packed as weights are; scores and weighted sums are then products.
#include "attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "pool.h"
#include "product.h"

namespace cadenza {
namespace {

constexpr int64_t kMostPositions = 32;  // of a piece
constexpr int64_t kMostQueries = 96;    // of a piece: positions times the heads of one KV head
constexpr int64_t kMostDepth = kMostHeadDim * sizeof(float);  // bytes

// Successive new tokens of one row.
struct Piece {
  int64_t row;
  int64_t token;     // the first one's, among all new tokens
  int64_t position;  // the first one's, in the sequence
  int64_t count;
};

// What one thread works with.
struct Scratch {
  alignas(64) char queries[kMostQueries * kMostDepth];
  alignas(64) char keys[kKeyTile * kMostDepth];
  alignas(64) char values[kKeyTile * kMostDepth];
  alignas(64) float scores[kMostQueries * kKeyTile];
  alignas(64) char weights[kMostQueries * kKeyTile * sizeof(float)];
  alignas(64) float attended[kMostQueries * kMostHeadDim];
  float most[kMostQueries], total[kMostQueries];
};

// All queries of a piece that share one KV head.
template <class Value>
class Task {
 public:
  Task(const Attention& attention, const Piece& piece, int64_t kv_head, Scratch& scratch)
      : a_(attention), piece_(piece), kv_head_(kv_head), s_(scratch),
        group_(a_.heads / a_.kv_heads), depth_(padded_depth(a_.head_dim, a_.dtype)) {}

  void run() {
    take_queries();
    const int64_t keys = piece_.position + piece_.count;
    for (int64_t first = 0; first < keys; first += kKeyTile) {
      take_tile(first, std::min(kKeyTile, keys - first));
      attend(first);
    }
    give_results();
  }

 private:
  int64_t queries() const { return piece_.count * group_; }

  void take_queries() {
    const int64_t bytes = a_.head_dim * sizeof(Value), stride = depth_ * sizeof(Value);
    for (int64_t i = 0; i < queries(); ++i) {
      const int64_t head = (piece_.token + i / group_) * a_.heads + kv_head_ * group_ + i % group_;
      std::memcpy(s_.queries + i * stride, a_.queries + head * bytes, bytes);
      std::memset(s_.queries + i * stride + bytes, 0, stride - bytes);
      s_.most[i] = -std::numeric_limits<float>::infinity();
      s_.total[i] = 0.0f;
    }
    std::memset(s_.attended, 0, queries() * a_.head_dim * sizeof(float));
  }

  // Packs the keys and values from `first` on; those past `count` are zeros, whatever lies there.
  void take_tile(int64_t first, int64_t count) {
    alignas(64) static constexpr char nothing[kMostDepth] = {};
    const char *keys[kKeyTile], *values[kKeyTile];
    const int32_t* table = a_.tables + piece_.row * a_.table_width;
    const int64_t bytes = a_.head_dim * sizeof(Value), token_bytes = a_.kv_heads * bytes;
    for (int64_t key = 0; key < count; ++key) {
      const int64_t block = table[(first + key) / a_.cache.block_size];
      const int64_t offset = (first + key) % a_.cache.block_size;
      keys[key] = a_.cache.token(block, offset, 0, token_bytes) + kv_head_ * bytes;
      values[key] = a_.cache.token(block, offset, 1, token_bytes) + kv_head_ * bytes;
    }
    for (int64_t key = count; key < kKeyTile; ++key) keys[key] = values[key] = nothing;
    a_.level->elementwise.pack_tile({keys, values, a_.head_dim, s_.keys, s_.values}, a_.dtype);
  }

  void attend(int64_t first) {
    // positions before the tile see none of it
    const int64_t skipped = std::max<int64_t>(first - piece_.position, 0) * group_;
    const int64_t count = queries() - skipped;
    const Kernel* kernel = &a_.level->kernels[a_.dtype];
    const int64_t x_stride = depth_ * sizeof(Value), weights_stride = kKeyTile * sizeof(Value);
    const int64_t sums_stride = a_.head_dim * sizeof(float);
    float* scores = s_.scores + skipped * kKeyTile;
    char* weights = s_.weights + skipped * weights_stride;
    const Product scored{kernel, a_.dtype, s_.queries + skipped * x_stride, x_stride, count,
                         {s_.keys, kKeyTile, a_.head_dim}, Finish::kFloat32,
                         reinterpret_cast<char*>(scores), kKeyTile * sizeof(float)};
    scored.compute(0, count, 0, kKeyTile);
    for (int64_t i = skipped; i < queries(); ++i) {
      const int64_t seen = piece_.position + i / group_ + 1 - first;
      a_.level->elementwise.softmax(
          {s_.scores + i * kKeyTile, std::min(seen, kKeyTile), a_.scale,
           s_.weights + i * weights_stride, &s_.most[i], &s_.total[i],
           s_.attended + i * a_.head_dim, a_.head_dim},
          a_.dtype);
    }
    const Product weighted{kernel, a_.dtype, weights, weights_stride, count,
                           {s_.values, a_.head_dim, kKeyTile}, Finish::kAdd,
                           reinterpret_cast<char*>(s_.attended + skipped * a_.head_dim), sums_stride};
    weighted.compute(0, count, 0, a_.head_dim);
  }

  void give_results() const {
    const int64_t bytes = a_.head_dim * sizeof(Value);
    for (int64_t i = 0; i < queries(); ++i) {
      char* token = a_.attended + (piece_.token + i / group_) * a_.attended_stride;
      a_.level->elementwise.convert(s_.attended + i * a_.head_dim, a_.head_dim, 1.0f / s_.total[i],
                                    a_.dtype, token + (kv_head_ * group_ + i % group_) * bytes);
    }
  }

  const Attention& a_;
  const Piece& piece_;
  const int64_t kv_head_;
  Scratch& s_;
  const int64_t group_;
  const int64_t depth_;  // of a query, padded
};

struct Tasks {
  const Attention* attention;
  std::vector<Piece> pieces;

  explicit Tasks(const Attention& a) : attention(&a) {
    const int64_t most = std::min(kMostPositions, kMostQueries / (a.heads / a.kv_heads));
    int64_t token = 0;
    for (int64_t row = 0; row < a.rows; ++row) {
      for (int64_t start = 0; start < a.num_new[row]; start += most)
        pieces.push_back({row, token + start, a.num_context[row] + start,
                          std::min<int64_t>(most, a.num_new[row] - start)});
      token += a.num_new[row];
    }
  }

  void run(int64_t task) const {
    Scratch scratch;
    const Piece& piece = pieces[task / attention->kv_heads];
    const int64_t kv_head = task % attention->kv_heads;
    if (attention->dtype == kBfloat16)
      Task<uint16_t>(*attention, piece, kv_head, scratch).run();
    else
      Task<float>(*attention, piece, kv_head, scratch).run();
  }
};

}  // namespace

void Attention::run(int32_t threads) const {
  const Tasks tasks(*this);
  run_tasks(
      threads, static_cast<int64_t>(tasks.pieces.size()) * kv_heads,
      [](void* context, int64_t task) { static_cast<const Tasks*>(context)->run(task); },
      const_cast<Tasks*>(&tasks));
}

}  // namespace cadenza

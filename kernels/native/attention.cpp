// Attention in tiles of 64 keys, counted from the sequence's first, with an online softmax. A query
// meets each tile in the same way whatever else is computed beside it: alone, in a batch, in a chunk.
//
// Keys and values of a tile are packed as weights are; scores and weighted sums are then products.
#include "attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "pool.h"
#include "product.h"

namespace cadenza {
namespace {

constexpr int64_t kMostPositions = 32;  // of a piece
constexpr int64_t kMostQueries = 96;    // of a part
constexpr int64_t kMostDepth = kMostHeadDim * sizeof(float);  // bytes

// Successive new tokens of one row.
struct Piece {
  int64_t row;
  int64_t token;     // the first one's, among all new tokens
  int64_t position;  // the first one's, in the sequence
  int64_t count;
};

// What is computed together: the queries of a piece that some KV heads serve.
struct Part {
  int64_t piece;
  int64_t first_head, num_heads;  // KV heads
};

// What one thread works with. Queries are in the order of their KV heads, positions and heads.
struct Scratch {
  alignas(64) char queries[kMostQueries * kMostDepth];
  alignas(64) char keys[2][kKeyTile * kMostDepth];  // of two tiles that follow each other
  alignas(64) char values[2][kKeyTile * kMostDepth];
  alignas(64) float scores[kMostQueries * kKeyTile];
  alignas(64) char weights[kMostQueries * kKeyTile * sizeof(float)];
  alignas(64) float attended[kMostQueries * kMostHeadDim];
  float most[kMostQueries], totals[kMostQueries][kSumLanes];
};

template <class Value>
class PartTask {
 public:
  PartTask(const Attention& attention, const Piece& piece, const Part& part, Scratch& scratch)
      : a_(attention), piece_(piece), part_(part), s_(scratch), group_(a_.heads / a_.kv_heads),
        depth_(padded_depth(a_.head_dim, a_.dtype)) {}

  void run() {
    for (int64_t head = 0; head < part_.num_heads; ++head) take_queries(head);
    const int64_t keys = piece_.position + piece_.count;
    const int64_t tiles = (keys + kKeyTile - 1) / kKeyTile * part_.num_heads;
    take_tile(tile_at(0));
    for (int64_t i = 0; i < tiles; ++i) {
      // what was written a moment ago cannot be read at once: so the next tile is packed first
      if (i + 1 < tiles) take_tile(tile_at(i + 1));
      const KeysOf tile = tile_at(i);
      const KeysOf ahead = tile_at(i + 2 < tiles ? i + 2 : i);
      const int64_t seeing = std::max<int64_t>(tile.first - piece_.position, 0);  // from there on
      if (tile.first + tile.count <= piece_.position + 1 || is_finite(tile))
        attend(tile, seeing, piece_.count, ahead);
      else
        attend_one_by_one(tile, seeing);
    }
    for (int64_t head = 0; head < part_.num_heads; ++head) give_results(head);
  }

 private:
  // A tile of one KV head.
  struct KeysOf {
    int64_t head;
    int64_t first, count;
    int64_t buffer;
  };

  // Tiles in the order in which they are met: of all heads, before the next keys.
  KeysOf tile_at(int64_t index) const {
    const int64_t first = index / part_.num_heads * kKeyTile;
    const int64_t keys = piece_.position + piece_.count;
    return {index % part_.num_heads, first, std::min(kKeyTile, keys - first), index % 2};
  }

  // Queries of one KV head; those of the part's first head come first.
  int64_t queries() const { return piece_.count * group_; }

  // Where a query's head stands among those of its token.
  int64_t query_head(int64_t head, int64_t i) const {
    return (part_.first_head + head) * group_ + i % group_;
  }

  void take_queries(int64_t head) {
    const int64_t bytes = a_.head_dim * sizeof(Value), stride = depth_ * sizeof(Value);
    for (int64_t i = 0; i < queries(); ++i) {
      const int64_t at = head * queries() + i;
      const int64_t from = (piece_.token + i / group_) * a_.heads + query_head(head, i);
      std::memcpy(s_.queries + at * stride, a_.queries + from * bytes, bytes);
      std::memset(s_.queries + at * stride + bytes, 0, stride - bytes);
      std::memset(s_.attended + at * a_.head_dim, 0, a_.head_dim * sizeof(float));
      s_.most[at] = -std::numeric_limits<float>::infinity();
      std::memset(s_.totals[at], 0, sizeof s_.totals[at]);
    }
  }

  // Calls with(i, key, value) for `count` tokens from `first` on.
  template <class With>
  void each_token(int64_t head, int64_t first, int64_t count, const With& with) const {
    const int64_t bytes = a_.head_dim * sizeof(Value), token_bytes = a_.kv_heads * bytes;
    const int64_t size = a_.cache.block_size;
    const int32_t* block = a_.tables + piece_.row * a_.table_width + first / size;
    for (int64_t i = 0, offset = first % size; i < count; offset = 0, ++block) {
      const char* key = a_.cache.token(*block, offset, 0, token_bytes) +
                        (part_.first_head + head) * bytes;
      const char* value = key + size * token_bytes;
      for (; offset < size && i < count; ++offset, ++i) {
        with(i, key, value);
        key += token_bytes;
        value += token_bytes;
      }
    }
  }

  // Packs the keys and values; those past the tile's count are zeros, whatever lies there.
  void take_tile(const KeysOf& tile) {
    alignas(64) static constexpr char nothing[kMostDepth] = {};
    const char *keys[kKeyTile], *values[kKeyTile];
    each_token(tile.head, tile.first, tile.count,
               [&](int64_t i, const char* key, const char* value) {
                 keys[i] = key;
                 values[i] = value;
               });
    for (int64_t key = tile.count; key < kKeyTile; ++key) keys[key] = values[key] = nothing;
    a_.level->elementwise.pack_tile(
        {keys, values, a_.head_dim, s_.keys[tile.buffer], s_.values[tile.buffer]}, a_.dtype);
  }

  // Fetches a third of a tile. Blocks lie anywhere: so tiles come while others are computed, and not
  // all at once, because few lines can be on their way.
  void fetch(const KeysOf& tile, int64_t third) const {
    const int64_t from = tile.count * third / 3, to = tile.count * (third + 1) / 3;
    const int64_t bytes = a_.head_dim * sizeof(Value);
    each_token(tile.head, tile.first + from, to - from,
               [&](int64_t, const char* key, const char* value) {
                 for (int64_t line = 0; line < bytes; line += 64) {
                   __builtin_prefetch(key + line);
                   __builtin_prefetch(value + line);
                   asm volatile("");  // gcc leaves out a call that does nothing but fetch
                 }
               });
  }

  // Whether all values of the packed tile are.
  bool is_finite(const KeysOf& tile) const {
    using Bits = std::conditional_t<sizeof(Value) == 2, uint16_t, uint32_t>;
    constexpr Bits exponent = sizeof(Value) == 2 ? 0x7f80u : 0x7f800000u;
    bool found = false;
    for (int64_t i = 0; i < kKeyTile * round_up(a_.head_dim, kPanel); ++i) {
      Bits bits;
      std::memcpy(&bits, s_.values[tile.buffer] + i * sizeof bits, sizeof bits);
      found |= (bits & exponent) == exponent;
    }
    return !found;
  }

  // Nothing that a position does not see is in its tile: a weight of 0 would not hide NaN.
  void attend_one_by_one(KeysOf tile, int64_t begin) {
    for (int64_t position = begin; position < piece_.count; ++position) {
      tile.count = std::min(kKeyTile, piece_.position + position + 1 - tile.first);
      take_tile(tile);
      attend(tile, position, position + 1, tile);
    }
  }

  // The tile's part in positions of the piece, `begin` to `end`; fetches `ahead`.
  void attend(const KeysOf& tile, int64_t begin, int64_t end, const KeysOf& ahead) {
    const int64_t count = (end - begin) * group_;
    const int64_t from = tile.head * queries() + begin * group_;
    const Kernel* kernel = &a_.level->kernels[a_.dtype];
    const int64_t x_stride = depth_ * sizeof(Value), weights_stride = kKeyTile * sizeof(Value);
    float* scores = s_.scores + from * kKeyTile;
    char* weights = s_.weights + from * weights_stride;
    float* attended = s_.attended + from * a_.head_dim;
    Product{kernel, a_.dtype, s_.queries + from * x_stride, x_stride, count,
            {s_.keys[tile.buffer], kKeyTile, a_.head_dim}, Finish::kFloat32, reinterpret_cast<char*>(scores),
            kKeyTile * sizeof(float)}
        .compute(0, count, 0, kKeyTile);
    fetch(ahead, 0);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t seen = piece_.position + begin + i / group_ + 1 - tile.first;
      a_.level->elementwise.softmax(
          {scores + i * kKeyTile, std::min(seen, kKeyTile), a_.scale, weights + i * weights_stride,
           &s_.most[from + i], s_.totals[from + i], attended + i * a_.head_dim, a_.head_dim},
          a_.dtype);
    }
    fetch(ahead, 1);
    Product{kernel, a_.dtype, weights, weights_stride, count,
            {s_.values[tile.buffer], a_.head_dim, kKeyTile}, Finish::kAccumulate, reinterpret_cast<char*>(attended), a_.head_dim * static_cast<int64_t>(sizeof(float))}
        .compute(0, count, 0, a_.head_dim);
    fetch(ahead, 2);
  }

  void give_results(int64_t head) const {
    for (int64_t i = 0; i < queries(); ++i) {
      const int64_t at = head * queries() + i;
      char* token = a_.attended + (piece_.token + i / group_) * a_.attended_stride;
      char* y = token + query_head(head, i) * a_.head_dim * static_cast<int64_t>(sizeof(Value));
      a_.level->elementwise.divide(
          {s_.attended + at * a_.head_dim, s_.totals[at], a_.head_dim, y}, a_.dtype);
    }
  }

  const Attention& a_;
  const Piece& piece_;
  const Part& part_;
  Scratch& s_;
  const int64_t group_;
  const int64_t depth_;  // of a query, padded
};

struct Tasks {
  const Attention& attention;
  std::vector<Piece> pieces;
  std::vector<Part> parts;
  mutable std::atomic<bool> is_memory_short{false};

  Tasks(const Attention& a, int32_t threads) : attention(a) {
    cut_rows();
    // Heads of a token are neighbours in the cache. They are read together where their queries are
    // few, and there is work for everybody all the same.
    const bool together = static_cast<int64_t>(pieces.size()) >= 4 * threads;
    for (int64_t i = 0; i < static_cast<int64_t>(pieces.size()); ++i) {
      const bool few = pieces[i].count * a.heads <= kMostQueries;
      const int64_t heads = together && few ? a.kv_heads : 1;
      for (int64_t head = 0; head < a.kv_heads; head += heads) parts.push_back({i, head, heads});
    }
  }

  void run(int64_t task) const {
    // too large for the stacks that threads may have
    thread_local std::unique_ptr<Scratch> scratch;
    if (scratch == nullptr) scratch.reset(new (std::nothrow) Scratch);
    if (scratch == nullptr) {
      is_memory_short = true;
      return;
    }
    const Part& part = parts[task];
    const Piece& piece = pieces[part.piece];
    if (attention.dtype == kBfloat16)
      PartTask<uint16_t>(attention, piece, part, *scratch).run();
    else
      PartTask<float>(attention, piece, part, *scratch).run();
  }

 private:
  void cut_rows() {
    const int64_t group = attention.heads / attention.kv_heads;
    const int64_t most = std::min(kMostPositions, kMostQueries / group);
    int64_t token = 0;
    for (int64_t row = 0; row < attention.rows; ++row) {
      const int64_t count = attention.num_new[row];
      for (int64_t start = 0; start < count; start += most)
        pieces.push_back({row, token + start, attention.num_context[row] + start,
                          std::min(most, count - start)});
      token += count;
    }
  }
};

}  // namespace

void Attention::run(int32_t threads) const {
  const Tasks tasks(*this, threads);
  run_tasks(
      threads, static_cast<int64_t>(tasks.parts.size()),
      [](void* context, int64_t task) { static_cast<const Tasks*>(context)->run(task); },
      const_cast<Tasks*>(&tasks));
  if (tasks.is_memory_short) throw std::bad_alloc();
}

}  // namespace cadenza

// Attention in tiles of 64 keys, counted from the sequence's first, with an online softmax. A query
// meets each tile in the same way whatever else is computed beside it: alone, in a batch, in a chunk.
//
// What was written a moment ago cannot be read at once: so a tile's scores are computed before those
// of the one ahead of it are read.
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
#include "units.h"

namespace cadenza {
namespace {

constexpr int64_t kMostPositions = 32;  // of a piece
constexpr int64_t kMostQueries = 96;    // of a part
constexpr int64_t kFetched = 256;       // bytes of a unit
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
  alignas(64) float scores[2][kMostQueries * kKeyTile];  // of two tiles that follow each other
  alignas(64) char weights[kMostQueries * kKeyTile * sizeof(float)];
  alignas(64) float attended[kMostQueries * kMostHeadDim];
  alignas(64) char values[kKeyTile * kMostDepth];  // of a tile, without those that are not seen
  struct {
    alignas(64) char keys[kKeyTile * kMostDepth];
    alignas(64) char values[kKeyTile * kMostDepth];
  } made[2];  // units of two tiles, where the cache has none
  float most[kMostQueries], totals[kMostQueries][kSumLanes];
};

template <class Value>
class PartTask {
 public:
  PartTask(const Attention& attention, const Piece& piece, const Part& part, Scratch& scratch)
      : a_(attention), piece_(piece), part_(part), s_(scratch), group_(a_.heads / a_.kv_heads) {}

  void run() {
    for (int64_t head = 0; head < part_.num_heads; ++head) take_queries(head);
    const int64_t keys = piece_.position + piece_.count;
    const int64_t tiles = ((keys + kKeyTile - 1) / kKeyTile - first_tile()) * part_.num_heads;
    KeyTile tile = tile_at(0), next = tile;
    score(tile);
    for (int64_t i = 0; i < tiles; ++i, tile = next) {
      if (i + 1 < tiles) score(next = tile_at(i + 1));
      if (a_.cache.has_units() && i + 2 < tiles) fetch(tile_at(i + 2));
      soften(tile);
      add_values(tile);
    }
    end_units(*a_.level, a_.dtype);
    for (int64_t head = 0; head < part_.num_heads; ++head) give_results(head);
  }

 private:
  // A tile of one KV head.
  struct KeyTile {
    int64_t head;
    int64_t first, count;  // keys
    int64_t buffer;        // of scores
    int64_t begin, end;    // positions of the piece that see it
    int64_t num_units;
    const char* keys[kTileUnits];
    const char* values[kTileUnits];
  };

  // Tiles in the order in which they are met: of all heads, before the next keys.
  KeyTile tile_at(int64_t index) const {
    KeyTile tile;
    tile.head = index % part_.num_heads;
    tile.first = (first_tile() + index / part_.num_heads) * kKeyTile;
    tile.count = std::min(kKeyTile, piece_.position + piece_.count - tile.first);
    tile.buffer = index % 2;
    tile.begin = std::max<int64_t>(tile.first - piece_.position, 0);
    tile.end = piece_.count;
    if (a_.window > 0)
      tile.end = std::min(tile.end, tile.first + tile.count - 1 + a_.window - piece_.position);
    tile.num_units = (tile.count + kUnit - 1) / kUnit;
    if (a_.cache.has_units())
      find_units(tile);
    else
      make_units(tile);
    return tile;
  }

  int64_t first_tile() const {
    return a_.window > 0 ? std::max<int64_t>(piece_.position + 1 - a_.window, 0) / kKeyTile : 0;
  }

  void find_units(KeyTile& tile) const {
    for (int64_t unit = 0; unit < tile.num_units; ++unit) {
      const int64_t key = tile.first + unit * kUnit;
      tile.keys[unit] = keys_at(key, tile.head);
      tile.values[unit] = values_at(key, tile.head);
    }
  }

  void make_units(KeyTile& tile) const {
    auto& made = s_.made[tile.buffer];
    const int64_t bytes = a_.cache.unit_bytes();
    for (int64_t unit = 0; unit < tile.num_units; ++unit) {
      char *keys = made.keys + unit * bytes, *values = made.values + unit * bytes;
      const int64_t first = unit * kUnit, count = std::min(kUnit, tile.count - first);
      for (int64_t i = 0; i < count; ++i) {
        a_.cache.put_key(keys, i, keys_at(tile.first + first + i, tile.head));
        a_.cache.put_value(values, i, values_at(tile.first + first + i, tile.head));
      }
      a_.cache.clear_values(values, count);
      tile.keys[unit] = keys;
      tile.values[unit] = values;
    }
  }

  int64_t block_of(int64_t key) const {
    return a_.tables[piece_.row * a_.table_width + key / a_.cache.block_size];
  }
  const char* keys_at(int64_t key, int64_t head) const {
    return a_.cache.keys(block_of(key), key % a_.cache.block_size, part_.first_head + head);
  }
  const char* values_at(int64_t key, int64_t head) const {
    return a_.cache.values(block_of(key), key % a_.cache.block_size, part_.first_head + head);
  }

  // Queries of one KV head; those of the part's first head come first.
  int64_t queries() const { return piece_.count * group_; }

  // Where a query's head stands among those of its token.
  int64_t query_head(int64_t head, int64_t i) const {
    return (part_.first_head + head) * group_ + i % group_;
  }

  void take_queries(int64_t head) {
    const int64_t bytes = a_.head_dim * sizeof(Value);
    for (int64_t i = 0; i < queries(); ++i) {
      const int64_t at = head * queries() + i;
      const int64_t from = (piece_.token + i / group_) * a_.heads + query_head(head, i);
      std::memcpy(s_.queries + at * bytes, a_.queries + from * bytes, bytes);
      std::memset(s_.attended + at * a_.head_dim, 0, a_.head_dim * sizeof(float));
      s_.most[at] = -std::numeric_limits<float>::infinity();
      std::memset(s_.totals[at], 0, sizeof s_.totals[at]);
    }
  }

  // Blocks lie anywhere: so what comes next is fetched while others are computed. Of a unit only its
  // beginning: the processor sees where that leads, and can have more lines on their way.
  void fetch(const KeyTile& tile) const {
    for (int64_t unit = 0; unit < tile.num_units; ++unit)
      for (int64_t line = 0; line < kFetched; line += 64) {
        __builtin_prefetch(tile.keys[unit] + line);
        __builtin_prefetch(tile.values[unit] + line);
        asm volatile("");  // gcc leaves out a call that does nothing but fetch
      }
  }

  // Scores of the positions that see the tile.
  void score(const KeyTile& tile) {
    const int64_t from = tile.head * queries() + tile.begin * group_;
    const int64_t bytes = a_.head_dim * static_cast<int64_t>(sizeof(Value));
    compute_scores(*a_.level, a_.dtype,
                   {s_.queries + from * bytes, (tile.end - tile.begin) * group_, a_.head_dim,
                    tile.keys, tile.num_units, scores(tile, from)});
  }

  float* scores(const KeyTile& tile, int64_t query) const {
    return s_.scores[tile.buffer] + query * kKeyTile;
  }
  char* weights(int64_t query) const {
    return s_.weights + query * kKeyTile * static_cast<int64_t>(sizeof(Value));
  }
  float* attended(int64_t query) const { return s_.attended + query * a_.head_dim; }

  // Makes weights of scores.
  void soften(const KeyTile& tile) {
    const int64_t from = tile.head * queries() + tile.begin * group_;
    const int64_t seen = piece_.position + tile.begin + 1 - tile.first;
    const int64_t hidden = a_.window > 0 ? seen - a_.window : -kMostPositions;
    a_.level->elementwise.softmax(
        {scores(tile, from), (tile.end - tile.begin) * group_, hidden,
         seen, group_, a_.scale * kLog2e, weights(from), &s_.most[from], s_.totals[from],
         attended(from), a_.head_dim},
        a_.dtype);
  }

  void add_values(const KeyTile& tile) {
    const int64_t seen = std::min(piece_.position + 1 - tile.first, tile.count);  // by all
    if (is_finite(tile, std::max<int64_t>(seen, 0) / kUnit))
      add_values(tile, tile.values, tile.begin, tile.end);
    else
      add_values_one_by_one(tile);
  }

  // For positions of the piece, `begin` to `end`.
  void add_values(const KeyTile& tile, const char* const* values, int64_t begin, int64_t end) {
    const int64_t from = tile.head * queries() + begin * group_;
    weigh(*a_.level, a_.dtype, {weights(from), (end - begin) * group_, a_.head_dim, values,
                                tile.num_units, attended(from)});
  }

  // Nothing that comes after a position is among its values: a weight of 0 would not hide NaN.
  void add_values_one_by_one(const KeyTile& tile) {
    const int64_t bytes = a_.cache.unit_bytes();
    const char* values[kTileUnits];
    for (int64_t unit = 0; unit < tile.num_units; ++unit) values[unit] = s_.values + unit * bytes;
    for (int64_t position = tile.begin; position < tile.end; ++position) {
      const int64_t seen = piece_.position + position + 1 - tile.first;
      for (int64_t unit = 0; unit < tile.num_units; ++unit) {
        char* copy = s_.values + unit * bytes;
        std::memcpy(copy, tile.values[unit], static_cast<size_t>(bytes));
        a_.cache.clear_values(copy, std::clamp<int64_t>(seen - unit * kUnit, 0, kUnit));
      }
      add_values(tile, values, position, position + 1);
    }
  }

  // Whether all values of the tile are, from a unit on. Behind a row's last token lies what others
  // have left there.
  bool is_finite(const KeyTile& tile, int64_t first_unit) const {
    using Bits = std::conditional_t<sizeof(Value) == 2, int16_t, int32_t>;
    constexpr Bits exponent = sizeof(Value) == 2 ? 0x7f80 : 0x7f800000;
    Bits most = 0;  // unlike a bool, quick without instructions of a level
    for (int64_t unit = first_unit; unit < tile.num_units; ++unit)
      for (int64_t i = 0; i < kUnit * a_.head_dim; ++i) {
        Bits bits;
        std::memcpy(&bits, tile.values[unit] + i * sizeof bits, sizeof bits);
        most = std::max<Bits>(most, bits & exponent);
      }
    return most < exponent;
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
    // the last pieces see most: they come first, so that all threads end at about the same time
    for (auto i = static_cast<int64_t>(pieces.size()) - 1; i >= 0; --i) {
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
      [](void* context, int64_t task, int64_t) { static_cast<const Tasks*>(context)->run(task); },
      const_cast<Tasks*>(&tasks));
  if (tasks.is_memory_short) throw std::bad_alloc();
}

}  // namespace cadenza

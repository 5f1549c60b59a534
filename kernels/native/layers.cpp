// All layers of a model over the new tokens of a step, in one call.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <new>

#include "attention.h"
#include "cpu.h"
#include "exported.h"
#include "memory.h"
#include "pool.h"
#include "product.h"

using namespace cadenza;

extern "C" {

struct CadenzaWeight {
  const void* panels;
  int32_t format;  // a dtype of level.h
};

// Norms and biases are fp32, weights are packed in the model's dtype, compact, or in int8. Null: the
// layer has none.
struct CadenzaLayer {
  const float* attention_norm;  // [hidden]
  CadenzaWeight qkv;            // [(heads + 2 kv_heads) * head_dim, hidden]
  CadenzaWeight output;         // [hidden, heads * head_dim]
  const float* mlp_norm;        // [hidden]
  CadenzaWeight gate_up;        // [2 * inner, hidden], 16 gates before their 16 ups
  CadenzaWeight down;           // [hidden, inner]
  const float* qkv_bias;        // [(heads + 2 kv_heads) * head_dim], or null
  const float* query_norm;      // [head_dim], or null, as the next
  const float* key_norm;
  int64_t window;               // keys that a token sees, itself included; 0: all before it
};

struct CadenzaModel {
  int32_t level, dtype;
  int32_t inputs;  // of products: the dtype, or int8
  int64_t num_layers;
  const CadenzaLayer* layers;
  int64_t hidden, heads, kv_heads, head_dim;
  int64_t inner;  // a multiple of 16
  float eps, scale;
  const float* cos;  // [positions][head_dim / 2]
  const float* sin;
};

// New tokens lie row after row; see plan.py.
struct CadenzaStep {
  int64_t tokens, rows;
  const int64_t* positions;    // [tokens]
  const int64_t* blocks;       // [tokens], where its keys and values go
  const int64_t* offsets;      // [tokens]
  const int32_t* num_context;  // [rows]
  const int32_t* num_new;      // [rows]
  const int32_t* tables;       // [rows][table_width]
  int64_t table_width;
  char* cache;  // [blocks][num_layers] of cache.h's, of the model's dtype
  int64_t block_size;
  float* hidden;  // [tokens][hidden], changed in place
};

// Nanoseconds that the parts of a call took.
struct CadenzaTimes {
  int64_t products, attention, rest;
};

}  // extern "C"

namespace cadenza {
namespace {

constexpr int64_t kTokensATask = 16;  // where little is done for each

// What a call needs while it runs. It is kept for the next call of its thread, as large as the largest
// step so far: else the system would take it back, and clear it anew, in every step.
class Workspace {
 public:
  explicit Workspace(int64_t bytes) {
    thread_local Memory memory;
    thread_local int64_t size = 0;
    if (size < bytes) {
      size = 0;
      memory.reset();
      memory = allocate(bytes);
      size = bytes;
    }
    next_ = memory.get();
  }

  // Bytes at a cache line's begin.
  char* take(int64_t bytes) {
    char* taken = next_;
    next_ += round_up(bytes, 64);
    return taken;
  }

 private:
  char* next_;
};

// Rows of values in a dtype, with zeros past the last one, as products take them. They are an odd
// number of cache lines apart: so those of a tile do not compete for a few sets of the cache.
class Rows {
 public:
  Rows(int64_t count, int64_t values, int32_t dtype)
      : count_(count), used_(values * size_of(dtype)),
        stride_((round_up(row_bytes(values, dtype), 64) / 64 | 1) * 64) {}

  int64_t bytes() const { return round_up(count_ * stride_, 64); }

  void take(Workspace& workspace) {
    memory_ = workspace.take(count_ * stride_);
    if (used_ != stride_)
      for (int64_t row = 0; row < count_; ++row)
        std::memset(at(row) + used_, 0, static_cast<size_t>(stride_ - used_));
  }

  char* at(int64_t row) const { return memory_ + row * stride_; }
  int64_t stride() const { return stride_; }

 private:
  int64_t count_, used_, stride_;
  char* memory_ = nullptr;
};

class Clock {
 public:
  // Adds what has passed since the last call.
  void add_to(int64_t& sum) {
    const auto now = std::chrono::steady_clock::now();
    sum += std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

class Forward {
 public:
  Forward(const CadenzaModel& model, const CadenzaStep& step, int32_t threads, CadenzaTimes& times)
      : m_(model), s_(step), threads_(threads), times_(times), level_(levels()[model.level]),
        normed_(qkv_rows(), model.hidden, model.inputs),
        attended_(step.tokens, model.heads * model.head_dim, model.dtype),
        gated_(step.tokens, model.inner, model.dtype),
        exact_(is_int8() ? step.tokens : 0, model.hidden, kFloat32),
        codes_(is_int8() ? step.tokens : 0, std::max(model.heads * model.head_dim, model.inner),
               kInt8) {
    const int64_t qkv_bytes = qkv_rows() * qkv_size() * static_cast<int64_t>(sizeof(float));
    const int64_t queries_bytes = step.tokens * query_bytes();
    Workspace workspace(round_up(qkv_bytes, 64) + round_up(queries_bytes, 64) + normed_.bytes() +
                        attended_.bytes() + gated_.bytes() + exact_.bytes() + codes_.bytes());
    queries_keys_values_ = workspace.take(qkv_bytes);
    queries_ = workspace.take(queries_bytes);
    for (Rows* rows : {&normed_, &attended_, &gated_, &exact_, &codes_}) rows->take(workspace);
  }

  void run() {
    for (int64_t index = 0; index < m_.num_layers; ++index) {
      const CadenzaLayer& layer = m_.layers[index];
      norm(layer.attention_norm, is_int8());
      multiply(normed_, qkv_rows(), m_.hidden, layer.qkv, qkv_size(), Finish::kFloat32, qkv(0),
               qkv_size() * sizeof(float));
      attend(index);
      multiply(taken(attended_, m_.heads * m_.head_dim), s_.tokens, m_.heads * m_.head_dim,
               layer.output, m_.hidden, Finish::kAdd, hidden(0), m_.hidden * sizeof(float));
      norm(layer.mlp_norm, false);
      multiply(normed_, s_.tokens, m_.hidden, layer.gate_up, 2 * m_.inner, gated_as(m_.dtype),
               gated_.at(0), gated_.stride());
      multiply(taken(gated_, m_.inner), s_.tokens, m_.inner, layer.down, m_.hidden, Finish::kAdd,
               hidden(0), m_.hidden * sizeof(float));
    }
  }

 private:
  bool is_int8() const { return m_.inputs == kInt8; }
  // Int8 products of queries, keys and values have a second row of each token, of what the codes of the
  // first leave: there it is that outliers cost most.
  int64_t qkv_rows() const { return (is_int8() ? 2 : 1) * s_.tokens; }
  int64_t qkv_size() const { return (m_.heads + 2 * m_.kv_heads) * m_.head_dim; }
  int64_t query_bytes() const { return m_.heads * m_.head_dim * size_of(m_.dtype); }
  char* qkv(int64_t token) const {
    return queries_keys_values_ + token * qkv_size() * static_cast<int64_t>(sizeof(float));
  }
  char* hidden(int64_t token) const { return reinterpret_cast<char*>(s_.hidden + token * m_.hidden); }

  Cache cache(int64_t layer) const {
    const int64_t layer_bytes =
        2 * s_.block_size * m_.kv_heads * m_.head_dim * size_of(m_.dtype);
    return {s_.cache + layer * layer_bytes, m_.num_layers * layer_bytes, s_.block_size,
            m_.kv_heads, m_.head_dim, m_.dtype};
  }

  void multiply(const Rows& x, int64_t rows, int64_t inputs, const CadenzaWeight& weight,
                int64_t outputs, Finish finish, char* y, int64_t y_stride) {
    clock_.add_to(times_.rest);
    Product{&level_->kernels[weight.format], weight.format, x.at(0), x.stride(), rows,
            {static_cast<const char*>(weight.panels), outputs, inputs}, finish, y, y_stride}
        .run(threads_);
    clock_.add_to(times_.products);
  }

  // Calls work(token) for all of them.
  template <class Work>
  void each_token(const Work& work) const {
    struct Context {
      const Work& work;
      int64_t tokens;
    } context{work, s_.tokens};
    run_tasks(
        threads_, (s_.tokens + kTokensATask - 1) / kTokensATask,
        [](void* of, int64_t task, int64_t) {
          const auto& c = *static_cast<const Context*>(of);
          const int64_t last = std::min((task + 1) * kTokensATask, c.tokens);
          for (int64_t token = task * kTokensATask; token < last; ++token) c.work(token);
        },
        &context);
  }

  // As a product takes them: int8 products their codes.
  const Rows& taken(const Rows& values, int64_t size) const {
    if (!is_int8()) return values;
    each_token([&](int64_t token) {
      level_->elementwise.quantise(values.at(token), size, m_.dtype, codes_.at(token));
    });
    return codes_;
  }

  // As a product takes it; twice: what the codes leave too.
  void norm(const float* weight, bool twice) const {
    each_token([&](int64_t token) {
      const auto* x = reinterpret_cast<const float*>(hidden(token));
      const auto& each = level_->elementwise;
      if (!is_int8()) {
        each.norm(x, weight, m_.hidden, m_.eps, m_.dtype, normed_.at(token));
        return;
      }
      each.norm(x, weight, m_.hidden, m_.eps, kFloat32, exact_.at(token));
      each.quantise(exact_.at(token), m_.hidden, kFloat32, normed_.at(token));
      if (!twice) return;
      each.subtract_codes(reinterpret_cast<float*>(exact_.at(token)), m_.hidden, normed_.at(token));
      each.quantise(exact_.at(token), m_.hidden, kFloat32, normed_.at(s_.tokens + token));
    });
  }

  void attend(int64_t layer) {
    const Cache to = cache(layer);
    each_token([&](int64_t token) { place(token, m_.layers[layer], to); });
    clock_.add_to(times_.rest);
    Attention{level_, m_.dtype, m_.heads, m_.kv_heads, m_.head_dim, m_.scale,
              m_.layers[layer].window, to, s_.rows,
              s_.num_context, s_.num_new, s_.tables, s_.table_width, queries_,
              attended_.at(0), attended_.stride()}
        .run(threads_);
    clock_.add_to(times_.attention);
  }

  // Adds a token's biases, norms and rotates its queries and keys; its keys and values go into the
  // cache.
  void place(int64_t token, const CadenzaLayer& layer, const Cache& to) const {
    alignas(64) char key[kMostHeadDim * sizeof(float)], value[sizeof key];
    const int64_t bytes = m_.head_dim * size_of(m_.dtype);
    auto* x = reinterpret_cast<float*>(qkv(token));
    const auto* rest = reinterpret_cast<const float*>(qkv(s_.tokens + token));
    if (is_int8())
      for (int64_t i = 0; i < qkv_size(); ++i) x[i] += rest[i];
    if (layer.qkv_bias != nullptr)
      for (int64_t i = 0; i < qkv_size(); ++i) x[i] += layer.qkv_bias[i];
    for (int64_t i = 0; i < m_.heads; ++i, x += m_.head_dim)
      rotate(token, x, layer.query_norm, queries_ + token * query_bytes() + i * bytes);
    const float* values = x + m_.kv_heads * m_.head_dim;
    for (int64_t i = 0; i < m_.kv_heads; ++i, x += m_.head_dim, values += m_.head_dim) {
      rotate(token, x, layer.key_norm, key);
      level_->elementwise.convert(values, m_.head_dim, m_.dtype, value);
      to.put(s_.blocks[token], s_.offsets[token], i, key, value);
    }
  }

  // x: [head_dim], which may change; y: the same in the model's dtype
  void rotate(int64_t token, float* x, const float* weight, char* y) const {
    const int64_t half = m_.head_dim / 2, at = s_.positions[token] * half;
    if (weight != nullptr)
      level_->elementwise.norm(x, weight, m_.head_dim, m_.eps, kFloat32,
                               reinterpret_cast<char*>(x));
    level_->elementwise.rotate({x, m_.cos + at, m_.sin + at, half, y}, m_.dtype);
  }

  const CadenzaModel& m_;
  const CadenzaStep& s_;
  const int32_t threads_;
  CadenzaTimes& times_;
  const Level* const level_;
  Rows normed_, attended_, gated_;
  // Of int8 products alone: what was normed, before it is quantised; codes of what is attended or gated
  Rows exact_, codes_;
  char* queries_keys_values_;  // [qkv_rows][qkv_size], fp32
  char* queries_;              // [tokens][heads][head_dim], of the dtype
  Clock clock_;
};

}  // namespace
}  // namespace cadenza

extern "C" {

// Returns 0, or 1 when there is no memory; `times` is added to.
EXPORT int32_t cadenza_layers(const CadenzaModel* model, const CadenzaStep* step, int32_t threads,
                              CadenzaTimes* times) {
  try {
    Forward(*model, *step, threads, *times).run();
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

}  // extern "C"

// The C functions of single products: levels, packing, multiplying.
#include <cstring>

#include "cpu.h"
#include "exported.h"
#include "memory.h"
#include "pool.h"
#include "product.h"

namespace cadenza {
namespace {

constexpr int64_t kRowsATask = 16;

// Rows of x as they come, and as an int8 product takes them.
struct Quantising {
  const Level* level;
  int32_t dtype;
  const char* x;
  int64_t rows, inputs;
  char* codes;
  int64_t stride;

  void run(int32_t threads) const {
    run_tasks(
        threads, (rows + kRowsATask - 1) / kRowsATask,
        [](void* context, int64_t task, int64_t) {
          static_cast<const Quantising*>(context)->some(task * kRowsATask);
        },
        const_cast<Quantising*>(this));
  }

  void some(int64_t first) const {
    for (int64_t row = first; row < rows && row < first + kRowsATask; ++row)
      level->elementwise.quantise(x + row * inputs * size_of(dtype), inputs, dtype,
                                  codes + row * stride);
  }
};

// Rows as a product takes them: those that are given, or a copy.
class Rows {
 public:
  // x: [rows, inputs] of `dtype`. Throws std::bad_alloc.
  Rows(const Level& level, int32_t dtype, int32_t format, int32_t threads, const char* x, int64_t rows,
       int64_t inputs)
      : first_(x), stride_(inputs * size_of(dtype)) {
    const int64_t bytes = stride_, taken = row_bytes(inputs, format);
    if (format == kInt8) {
      stride_ = round_up(taken, 64);
      copy_ = allocate(rows * stride_);
      Quantising{&level, dtype, x, rows, inputs, copy_.get(), stride_}.run(threads);
    } else if (taken != bytes) {
      stride_ = taken;
      copy_ = allocate(rows * stride_);
      for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(copy_.get() + row * stride_, x + row * bytes, static_cast<size_t>(bytes));
        std::memset(copy_.get() + row * stride_ + bytes, 0, static_cast<size_t>(stride_ - bytes));
      }
    }
    if (copy_ != nullptr) first_ = copy_.get();
  }

  const char* first() const { return first_; }
  int64_t stride() const { return stride_; }

 private:
  const char* first_;
  int64_t stride_;  // bytes
  Memory copy_;
};

}  // namespace
}  // namespace cadenza

using namespace cadenza;

extern "C" {

// The name of a level this machine has, slowest first; null past the last.
EXPORT const char* cadenza_level(int32_t number) {
  const Level* level = levels()[number];
  return level == nullptr ? nullptr : level->name;
}

EXPORT int64_t cadenza_packed_bytes(int64_t outputs, int64_t inputs, int32_t dtype) {
  return packed_bytes(outputs, inputs, dtype);
}

// Whether a weight [outputs, inputs], of bf16 if the format is compact bf16, has values that fit it.
EXPORT int32_t cadenza_fits(int32_t threads, const void* weight, int64_t outputs, int64_t inputs,
                            int32_t format) {
  return format != kCompactBfloat16 || fits_compact(threads, weight, outputs, inputs);
}

// weight: [outputs, inputs] of `dtype` -> packed: cadenza_packed_bytes of `format`, the same for all
// levels. The format is the dtype, int8, or compact bf16 for bf16 that fits. Returns 0, or 1 where a
// value cannot be quantised, as it is not finite.
EXPORT int32_t cadenza_pack(int32_t threads, const void* weight, int64_t outputs, int64_t inputs,
                            int32_t dtype, int32_t format, void* packed) {
  if (format == kInt8) return !pack_int8(threads, weight, outputs, inputs, dtype, packed);
  if (format == kCompactBfloat16)
    pack_compact(threads, weight, outputs, inputs, packed);
  else
    pack(threads, weight, outputs, inputs, dtype, packed);
  return 0;
}

// Whether products of a level take weights of a format.
EXPORT int32_t cadenza_takes(int32_t level, int32_t format) {
  return levels()[level]->kernels[format].tile != nullptr;
}

// y [rows, outputs] of `y_dtype` = x [rows, inputs] of `dtype` times the weight, packed in a format that
// the level takes; contiguous. Returns 0, or 1 when there is no memory.
EXPORT int32_t cadenza_linear(int32_t level, int32_t dtype, int32_t format, int32_t threads,
                              const void* x, int64_t rows, int64_t inputs, const void* packed,
                              int64_t outputs, int32_t y_dtype, void* y) {
  const Level& chosen = *levels()[level];
  try {
    const Rows taken(chosen, dtype, format, threads, static_cast<const char*>(x), rows, inputs);
    Product{&chosen.kernels[format], format, taken.first(), taken.stride(), rows,
            {static_cast<const char*>(packed), outputs, inputs}, stored_as(y_dtype),
            static_cast<char*>(y), outputs * size_of(y_dtype)}
        .run(threads);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

}  // extern "C"

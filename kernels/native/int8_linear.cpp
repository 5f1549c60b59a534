// The C functions of single int8 products: packing, and multiplying rows that are quantised first.
#include "cpu.h"
#include "exported.h"
#include "memory.h"
#include "pool.h"
#include "product.h"

namespace cadenza {
namespace {

constexpr int64_t kRowsATask = 16;

// Rows of x and what they become.
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

}  // namespace
}  // namespace cadenza

using namespace cadenza;

extern "C" {

// weight: [outputs, inputs] of `dtype` -> packed: cadenza_packed_bytes of int8, the same for all levels.
// Returns 0, or 1 where a value is not finite.
EXPORT int32_t cadenza_pack_int8(int32_t threads, const void* weight, int64_t outputs,
                                 int64_t inputs, int32_t dtype, void* packed) {
  return pack_int8(threads, weight, outputs, inputs, dtype, packed) ? 0 : 1;
}

// y [rows, outputs] of `y_dtype` = x [rows, inputs] of `dtype` times the packed weight, contiguous.
// Returns 0, or 1 when there is no memory.
EXPORT int32_t cadenza_int8_linear(int32_t level, int32_t dtype, int32_t threads, const void* x,
                                   int64_t rows, int64_t inputs, const void* packed,
                                   int64_t outputs, int32_t y_dtype, void* y) {
  const int64_t stride = round_up(row_bytes(inputs, kInt8), 64);
  Memory codes;
  try {
    codes = allocate(rows * stride);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  const Level* chosen = levels()[level];
  Quantising{chosen, dtype, static_cast<const char*>(x), rows, inputs, codes.get(), stride}.run(
      threads);
  Product{&chosen->kernels[kInt8], kInt8, codes.get(), stride, rows,
          {static_cast<const char*>(packed), outputs, inputs}, stored_as(y_dtype),
          static_cast<char*>(y), outputs * size_of(y_dtype)}
      .run(threads);
  return 0;
}

}  // extern "C"

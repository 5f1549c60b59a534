// The C functions of single products: levels, packing, multiplying.
#include <cstring>

#include "cpu.h"
#include "exported.h"
#include "memory.h"
#include "product.h"

namespace cadenza {
namespace {

// x with its inputs padded with zeros to `padded` bytes.
Memory padded_rows(const char* x, int64_t rows, int64_t bytes, int64_t padded) {
  Memory copy = allocate(rows * padded);
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(copy.get() + row * padded, x + row * bytes, static_cast<size_t>(bytes));
    std::memset(copy.get() + row * padded + bytes, 0, static_cast<size_t>(padded - bytes));
  }
  return copy;
}

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

// weight: [outputs, inputs] -> packed: cadenza_packed_bytes, the same for all levels.
EXPORT void cadenza_pack(int32_t threads, const void* weight, int64_t outputs, int64_t inputs,
                         int32_t dtype, void* packed) {
  pack(threads, weight, outputs, inputs, dtype, packed);
}

// y [rows, outputs] = x [rows, inputs] times the packed weight, contiguous; all of `dtype`, but y of
// `y_dtype`. Returns 0, or 1 when there is no memory.
EXPORT int32_t cadenza_linear(int32_t level, int32_t dtype, int32_t threads, const void* x,
                              int64_t rows, int64_t inputs, const void* packed, int64_t outputs,
                              int32_t y_dtype, void* y) {
  const char* rows_of_x = static_cast<const char*>(x);
  const int64_t bytes = inputs * size_of(dtype);
  const int64_t padded_bytes = padded_depth(inputs, dtype) * size_of(dtype);
  Memory copy;
  if (padded_bytes != bytes) {
    try {
      copy = padded_rows(rows_of_x, rows, bytes, padded_bytes);
    } catch (const std::bad_alloc&) {
      return 1;
    }
    rows_of_x = copy.get();
  }
  const Packed weight{static_cast<const char*>(packed), outputs, inputs};
  const Product product{&levels()[level]->kernels[dtype], dtype, rows_of_x, padded_bytes, rows,
                        weight, stored_as(y_dtype), static_cast<char*>(y),
                        outputs * size_of(y_dtype)};
  product.run(threads);
  return 0;
}

}  // extern "C"

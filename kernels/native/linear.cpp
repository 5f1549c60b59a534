// The C functions: levels, packing, and products cut into tiles.
#include "linear.h"

#include <cstring>
#include <memory>
#include <new>

#include "cpu.h"
#include "pool.h"

namespace cadenza {
namespace {

constexpr int64_t kTaskRows = 96;           // most rows of a task: several tiles use a cached panel
constexpr int64_t kTaskBytes = 128 * 1024;  // of the weight, that a task of few rows is worth

int64_t size_of(int32_t dtype) { return dtype == kBfloat16 ? 2 : 4; }

int64_t padded_depth(int64_t inputs, int32_t dtype) {
  return dtype == kBfloat16 ? round_up(inputs, kBf16Depth) : inputs;
}

struct Product {
  const Kernel* kernel;
  Tile whole;          // all rows and outputs
  int64_t size;        // bytes a value
  int64_t tile_rows;   // most rows of a tile
  int64_t width;       // panels a tile
  int64_t task_rows;
  int64_t task_panels;
  int64_t row_tasks;

  void run(int64_t task) const {
    const int64_t first_row = task % row_tasks * task_rows;
    const int64_t last_row = least(first_row + task_rows, whole.rows);
    const int64_t first = task / row_tasks * task_panels * kPanel;
    const int64_t last = least(first + task_panels * kPanel, whole.outputs);
    for (int64_t output = first; output < last; output += width * kPanel) {
      const int64_t outputs = least(width * kPanel, last - output);
      // tiles of about equal height: a last one of a row would read the panel for little
      const int64_t tiles = (last_row - first_row + tile_rows - 1) / tile_rows;
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t row = first_row + (last_row - first_row) * i / tiles;
        const int64_t next = first_row + (last_row - first_row) * (i + 1) / tiles;
        compute(row, next - row, output, outputs);
      }
    }
  }

 private:
  static int64_t least(int64_t left, int64_t right) { return left < right ? left : right; }

  void compute(int64_t row, int64_t rows, int64_t output, int64_t outputs) const {
    Tile tile = whole;
    tile.x += row * tile.x_stride;
    tile.y += row * tile.y_stride + output * size;
    tile.weight += output / kPanel * tile.panel_bytes;
    tile.rows = rows;
    tile.outputs = outputs;
    kernel->tile(tile);
  }
};

void multiply(const Product& product, int32_t threads) {
  const int64_t panels = (product.whole.outputs + kPanel - 1) / kPanel;
  const int64_t panel_tasks = (panels + product.task_panels - 1) / product.task_panels;
  run_tasks(
      threads, panel_tasks * product.row_tasks,
      [](void* context, int64_t task) { static_cast<const Product*>(context)->run(task); },
      const_cast<Product*>(&product));
}

struct Freed {
  void operator()(char* memory) const { ::operator delete(memory, std::align_val_t{64}); }
};

// x with its inputs padded with zeros to `depth`.
std::unique_ptr<char, Freed> padded(const char* x, int64_t rows, int64_t bytes, int64_t padded) {
  std::unique_ptr<char, Freed> copy(static_cast<char*>(
      ::operator new(static_cast<size_t>(rows * padded), std::align_val_t{64}, std::nothrow)));
  if (copy == nullptr) return copy;
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(copy.get() + row * padded, x + row * bytes, static_cast<size_t>(bytes));
    std::memset(copy.get() + row * padded + bytes, 0, static_cast<size_t>(padded - bytes));
  }
  return copy;
}

template <class Value>
void pack(const Value* weight, int64_t outputs, int64_t inputs, int64_t depth, int64_t step,
          Value* packed) {
  std::memset(packed, 0, static_cast<size_t>(round_up(outputs, kPanel) * depth) * sizeof(Value));
  for (int64_t output = 0; output < outputs; ++output) {
    Value* panel = packed + output / kPanel * kPanel * depth;
    for (int64_t input = 0; input < inputs; ++input) {
      const int64_t pair = input / step * kPanel + output % kPanel;
      panel[pair * step + input % step] = weight[output * inputs + input];
    }
  }
}

}  // namespace
}  // namespace cadenza

using namespace cadenza;

#define EXPORT __attribute__((visibility("default")))

extern "C" {

// The name of a level this machine has, slowest first; null past the last.
EXPORT const char* cadenza_level(int32_t number) {
  const Level* level = levels()[number];
  return level == nullptr ? nullptr : level->name;
}

EXPORT int64_t cadenza_packed_bytes(int64_t outputs, int64_t inputs, int32_t dtype) {
  return round_up(outputs, kPanel) * padded_depth(inputs, dtype) * size_of(dtype);
}

// weight: [outputs, inputs] -> packed: cadenza_packed_bytes, the same for all levels.
EXPORT void cadenza_pack(const void* weight, int64_t outputs, int64_t inputs, int32_t dtype,
                  void* packed) {
  const int64_t depth = padded_depth(inputs, dtype);
  if (dtype == kBfloat16)
    pack(static_cast<const uint16_t*>(weight), outputs, inputs, depth, 2,
         static_cast<uint16_t*>(packed));
  else
    pack(static_cast<const float*>(weight), outputs, inputs, depth, 1,
         static_cast<float*>(packed));
}

// y [rows, outputs] = x [rows, inputs] times the packed weight, all of `dtype` and contiguous.
// Returns 0, or 1 when there is no memory.
EXPORT int32_t cadenza_linear(int32_t level, int32_t dtype, int32_t threads, const void* x, int64_t rows,
                       int64_t inputs, const void* packed, int64_t outputs, void* y) {
  if (rows == 0 || outputs == 0) return 0;
  const Kernel& kernel = levels()[level]->kernels[dtype];
  const int64_t size = size_of(dtype), depth = round_up(inputs, kernel.depth_multiple);
  const char* rows_of_x = static_cast<const char*>(x);
  std::unique_ptr<char, Freed> copy;
  if (depth != inputs) {
    copy = padded(rows_of_x, rows, inputs * size, depth * size);
    if (copy == nullptr) return 1;
    rows_of_x = copy.get();
  }
  const int64_t panel_bytes = padded_depth(inputs, dtype) * kPanel * size;
  // few rows: as wide as the sums of all of them fit the registers, so that weights pass once
  const bool wide = kernel.wide_rows && (rows <= kernel.wide_rows || rows > kernel.narrow_rows);
  Product product;
  product.kernel = &kernel;
  product.whole = {rows_of_x, depth * size, static_cast<const char*>(packed), panel_bytes, depth,
                   static_cast<char*>(y), outputs * size, rows, outputs};
  product.size = size;
  product.width = wide ? 2 : 1;
  product.tile_rows = wide ? kernel.wide_rows : kernel.narrow_rows;
  product.row_tasks = (rows + kTaskRows - 1) / kTaskRows;
  product.task_rows = (rows + product.row_tasks - 1) / product.row_tasks;
  const int64_t wanted = kTaskBytes / panel_bytes / product.width;
  product.task_panels = product.width * (wanted > 1 ? wanted : 1);
  multiply(product, threads);
  return 0;
}

}  // extern "C"

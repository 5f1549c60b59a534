// A product is cut into tasks, and a task into tiles.
#include "product.h"

#include <algorithm>
#include <cstring>

#include "pool.h"

namespace cadenza {
namespace {

constexpr int64_t kTaskRows = 256;  // most rows of a task: several tiles use a cached panel

int64_t written_bytes(Finish finish, int64_t outputs) {
  switch (finish) {
    case Finish::kBfloat16:
      return 2 * outputs;
    case Finish::kGatedFloat32:
      return 4 * outputs / 2;
    case Finish::kGatedBfloat16:
      return 2 * outputs / 2;
    default:
      return 4 * outputs;
  }
}

// Few rows: as wide as the sums of all of them fit the registers, so that weights pass once.
int64_t tile_width(const Kernel& kernel, int64_t rows) {
  const bool is_wide =
      kernel.wide_rows && (rows <= kernel.wide_rows || rows > kernel.narrow_rows);
  return is_wide ? 2 * kPanel : kPanel;
}

// A task is some rows and one tile's outputs, and the rows of an output come one after another.
struct Tasks {
  const Product* product;
  int64_t row_tasks, rows, width, count;

  explicit Tasks(const Product& whole) : product(&whole) {
    width = tile_width(*whole.kernel, whole.rows);
    row_tasks = (whole.rows + kTaskRows - 1) / kTaskRows;
    rows = (whole.rows + row_tasks - 1) / row_tasks;
    count = row_tasks * ((whole.weight.outputs + width - 1) / width);
  }

  void run(int64_t task, int64_t next) const {
    const int64_t row = task % row_tasks * rows;
    const bool is_other = next != kNoTask && output(next) != output(task);
    product->compute(row, std::min(row + rows, product->rows), output(task),
                     is_other ? product->panel(output(next)) : nullptr);
    if (next == kNoTask) product->end();
  }

  int64_t output(int64_t task) const { return task / row_tasks * width; }
};

template <class Value>
struct Packing {
  const Value* weight;
  int64_t outputs, inputs, depth;
  int64_t step;  // inputs side by side
  Value* packed;

  void run(int64_t panel) const {
    Value* to = packed + panel * kPanel * depth;
    std::memset(to, 0, static_cast<size_t>(kPanel * depth) * sizeof(Value));
    const int64_t count = std::min(kPanel, outputs - panel * kPanel);
    for (int64_t output = 0; output < count; ++output) {
      const Value* from = weight + (panel * kPanel + output) * inputs;
      for (int64_t input = 0; input < inputs; ++input)
        to[(input / step * kPanel + output) * step + input % step] = from[input];
    }
  }
};

template <class Value>
void pack_as(int32_t threads, const Packing<Value>& packing) {
  run_tasks(
      threads, (packing.outputs + kPanel - 1) / kPanel,
      [](void* context, int64_t panel, int64_t) {
        static_cast<const Packing<Value>*>(context)->run(panel);
      },
      const_cast<Packing<Value>*>(&packing));
}

}  // namespace

int64_t packed_bytes(int64_t outputs, int64_t inputs, int32_t dtype) {
  return (outputs + kPanel - 1) / kPanel * panel_bytes(inputs, dtype);
}

void pack(int32_t threads, const void* weight, int64_t outputs, int64_t inputs, int32_t dtype,
          void* packed) {
  const int64_t depth = padded_depth(inputs, dtype);
  if (dtype == kBfloat16)
    pack_as<uint16_t>(threads, {static_cast<const uint16_t*>(weight), outputs, inputs, depth, 2,
                                static_cast<uint16_t*>(packed)});
  else
    pack_as<float>(threads, {static_cast<const float*>(weight), outputs, inputs, depth, 1,
                             static_cast<float*>(packed)});
}

void Product::run(int32_t threads) const {
  if (rows == 0 || weight.outputs == 0) return;
  const Tasks tasks(*this);
  run_tasks(
      threads, tasks.count,
      [](void* context, int64_t task, int64_t next) {
        static_cast<const Tasks*>(context)->run(task, next);
      },
      const_cast<Tasks*>(&tasks));
}

void Product::compute(int64_t first_row, int64_t last_row, int64_t output,
                      const char* ahead) const {
  const int64_t width = tile_width(*kernel, rows);
  const int64_t tile_rows = width > kPanel ? kernel->wide_rows : kernel->narrow_rows;
  const int64_t panel_bytes = weight.panel_bytes(dtype);
  // tiles of about equal height: a last one of a row would read the panel for little
  const int64_t count = last_row - first_row;
  const int64_t tiles = (count + tile_rows - 1) / tile_rows;
  const int64_t ahead_bytes = panel_bytes * (width / kPanel) / tiles;
  const char* from = panel(output);
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t row = first_row + count * i / tiles;
    const int64_t height = first_row + count * (i + 1) / tiles - row;
    char* to = y + row * y_stride + written_bytes(finish, output);
    kernel->tile({x + row * x_stride,
                  x_stride,
                  {from, from + kHalfBytes, from + panel_bytes, from + panel_bytes + kHalfBytes},
                  2 * kHalfBytes,
                  padded_depth(weight.inputs, dtype),
                  to,
                  y_stride,
                  height,
                  std::min(width, weight.outputs - output),
                  finish,
                  ahead == nullptr ? nullptr : ahead + i * ahead_bytes,
                  ahead_bytes});
  }
}

void Product::end() const {
  if (kernel->end != nullptr) kernel->end();
}

}  // namespace cadenza

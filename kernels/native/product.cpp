// A product is cut into tasks, and a task into tiles.
#include "product.h"

#include <algorithm>

#include "pool.h"

namespace cadenza {
namespace {

constexpr int64_t kNear = 16 << 10;  // bytes
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

// What comes while tiles of one task are computed. One alone reads faster than it computes: what it
// needs itself is fetched not far before. Of several, the first needs most of the time that others take.
struct Coming {
  Fetch own, other;  // panels
  int64_t tiles;

  static int64_t near(const Fetch& panels) { return std::min(kNear, panels.bytes); }

  // Of its own panels.
  Fetch rest() const {
    if (tiles > 1) return {nullptr, 0};
    return {own.from + near(own), own.bytes - near(own)};
  }

  // Of the others.
  Fetch next(int64_t tile) const {
    if (tiles == 1) return {other.from, near(other)};
    const int64_t share = other.bytes / tiles;
    return {other.from + tile * share, share};
  }
};

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
                     is_other ? panels(output(next)) : Fetch{nullptr, 0});
    if (next == kNoTask) product->end();
  }

  int64_t output(int64_t task) const { return task / row_tasks * width; }

  Fetch panels(int64_t output) const { return product->panels(output, width); }
};

}  // namespace

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

Fetch Product::panels(int64_t output, int64_t width) const {
  const int64_t outputs = std::min(width, weight.outputs - output);
  return {panel(output), (outputs + kPanel - 1) / kPanel * weight.panel_bytes(dtype)};
}

void Product::compute(int64_t first_row, int64_t last_row, int64_t output,
                      const Fetch& ahead) const {
  const int64_t width = tile_width(*kernel, rows);
  const int64_t tile_rows = width > kPanel ? kernel->wide_rows : kernel->narrow_rows;
  const int64_t panel_bytes = weight.panel_bytes(dtype);
  // tiles of about equal height: a last one of a row would read the panel for little
  const int64_t count = last_row - first_row;
  const int64_t tiles = (count + tile_rows - 1) / tile_rows;
  const char* from = panel(output);
  const Coming coming{panels(output, width), ahead, tiles};
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
                  {coming.rest(), coming.next(i)},
                  i == 0,
                  i + 1 == tiles});
  }
}

void Product::end() const {
  if (kernel->end != nullptr) kernel->end();
}

}  // namespace cadenza

#include "units.h"

#include <algorithm>

namespace cadenza {
namespace {

constexpr int64_t kRowBytes = kKeyTile * sizeof(float);  // of scores

// Calls with(first, count) for rows that a tile takes at a time.
template <class With>
void each_rows(const Kernel& kernel, int64_t rows, const With& with) {
  for (int64_t row = 0; row < rows; row += kernel.narrow_rows)
    with(row, std::min(kernel.narrow_rows, rows - row));
}

void scores_by_tiles(const Kernel& kernel, int32_t dtype, const Scores& s) {
  const int64_t stride = s.dims * size_of(dtype);
  each_rows(kernel, s.rows, [&](int64_t row, int64_t count) {
    for (int64_t unit = 0; unit < s.num_units; unit += 2) {
      const bool is_last = unit + 1 == s.num_units;
      const char *first = s.units[unit], *second = is_last ? first : s.units[unit + 1];
      float* y = s.scores + row * kKeyTile + unit * kUnit;
      kernel.tile({s.queries + row * stride, stride, {first, second}, kHalfBytes, s.dims,
                   reinterpret_cast<char*>(y), kRowBytes, count, is_last ? kUnit : 2 * kUnit,
                   Finish::kFloat32, {}});
    }
  });
}

void weigh_by_tiles(const Kernel& kernel, int32_t dtype, const Weighing& w) {
  const int64_t size = size_of(dtype), y_stride = w.dims * static_cast<int64_t>(sizeof(float));
  each_rows(kernel, w.rows, [&](int64_t row, int64_t count) {
    for (int64_t unit = 0; unit < w.num_units; ++unit) {
      const char* x = w.weights + (row * kKeyTile + unit * kUnit) * size;
      for (int64_t dim = 0; dim < w.dims; dim += kPanel) {
        const char* half = w.units[unit] + dim / kHalf * kHalfBytes;
        float* y = w.attended + row * w.dims + dim;
        kernel.tile({x, kKeyTile * size, {half, half + kHalfBytes}, 4 * w.dims, kUnit,
                     reinterpret_cast<char*>(y), y_stride, count, kPanel, Finish::kAdd, {}});
      }
    }
  });
}

}  // namespace

void compute_scores(const Level& level, int32_t dtype, const Scores& scores) {
  if (level.unit_kernels[dtype].scores != nullptr)
    level.unit_kernels[dtype].scores(scores);
  else
    scores_by_tiles(level.kernels[dtype], dtype, scores);
}

void weigh(const Level& level, int32_t dtype, const Weighing& weighing) {
  if (level.unit_kernels[dtype].weigh != nullptr)
    level.unit_kernels[dtype].weigh(weighing);
  else
    weigh_by_tiles(level.kernels[dtype], dtype, weighing);
}

void end_units(const Level& level, int32_t dtype) {
  if (level.unit_kernels[dtype].end != nullptr) level.unit_kernels[dtype].end();
}

}  // namespace cadenza

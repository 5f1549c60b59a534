// Tiles of 512-bit registers. Who includes this has defined TARGET, the instruction sets of its
// functions, and inside its own namespace, so that no function is shared with another level.
//
// A format says what sums are (Sum, and Sums of them), how wide a value is (kSize), how many inputs a
// step takes (kStep), and has `step`, which adds the products of a step whose inputs lie `at` bytes from
// a half's first ones.

constexpr int64_t kNarrowRows = 12, kWideRows = 6;  // both take 24 of the 32 registers for sums

template <class Format, int ROWS, int HALVES>
TARGET void tile_of(const Tile& t) {
  typename Format::Sums sums[ROWS][HALVES];
  EACH(row, ROWS) EACH(i, HALVES) sums[row][i] = typename Format::Sums{};
  const char* halves[HALVES];
  EACH(i, HALVES) halves[i] = t.halves[i];
  const char* x = t.x;
  const int64_t steps = t.depth / Format::kStep, bytes = steps * t.stride;
  Ahead ahead(t, steps);
  for (int64_t at = 0; at < bytes; at += t.stride) {
    ahead.fetch();
    Format::template step<ROWS, HALVES>(x, t.x_stride, halves, at, sums);
    x += Format::kStep * Format::kSize;
  }
  alignas(64) typename Format::Sum results[ROWS][kHalf * HALVES];
  EACH(row, ROWS) EACH(i, HALVES)
    __builtin_memcpy(&results[row][kHalf * i], &sums[row][i], sizeof sums[row][i]);
  finish(t, &results[0][0], kHalf * HALVES);
}

template <class Format>
void tile(const Tile& t) {
  static constexpr TileFunction narrow[] = {
      tile_of<Format, 1, 2>, tile_of<Format, 2, 2>, tile_of<Format, 3, 2>,  tile_of<Format, 4, 2>,
      tile_of<Format, 5, 2>, tile_of<Format, 6, 2>, tile_of<Format, 7, 2>,  tile_of<Format, 8, 2>,
      tile_of<Format, 9, 2>, tile_of<Format, 10, 2>, tile_of<Format, 11, 2>, tile_of<Format, 12, 2>,
  };
  static constexpr TileFunction wide[] = {
      tile_of<Format, 1, 4>, tile_of<Format, 2, 4>, tile_of<Format, 3, 4>,
      tile_of<Format, 4, 4>, tile_of<Format, 5, 4>, tile_of<Format, 6, 4>,
  };
  (t.outputs > kPanel ? wide : narrow)[t.rows - 1](t);
}

// Tiles of 512-bit registers. Who includes this has defined TARGET, the instruction sets of its
// functions, and inside its own namespace, so that no function is shared with another level.
//
// A format says how wide a value is (kSize), how many inputs a step takes (kStep), and has `step`,
// which adds a step's products.

constexpr int64_t kNarrowRows = 12, kWideRows = 6;  // both take 24 of the 32 registers for sums
constexpr int64_t kAhead = 2048;  // bytes of a panel that are fetched before they are needed

template <class Format, int ROWS, int PANELS>
TARGET void tile_of(const Tile& t) {
  constexpr int64_t step_bytes = kPanel * Format::kSize * Format::kStep;
  __m512 sums[ROWS][2 * PANELS];
  EACH(row, ROWS) EACH(i, 2 * PANELS) sums[row][i] = _mm512_setzero_ps();
  const char* weight = t.weight;
  const char* x = t.x;
  for (int64_t input = 0; input < t.depth; input += Format::kStep) {
    EACH(panel, PANELS)
      for (int64_t line = 0; line < step_bytes; line += 64)
        _mm_prefetch(weight + panel * t.panel_bytes + kAhead + line, _MM_HINT_T0);
    Format::template step<ROWS, PANELS>(x, t.x_stride, weight, t.panel_bytes, sums);
    weight += step_bytes;
    x += Format::kStep * Format::kSize;
  }
  alignas(64) float results[ROWS][kPanel * PANELS];
  EACH(row, ROWS) EACH(i, 2 * PANELS) _mm512_store_ps(&results[row][16 * i], sums[row][i]);
  finish(t, &results[0][0], kPanel * PANELS);
}

template <class Format>
void tile(const Tile& t) {
  static constexpr TileFunction narrow[] = {
      tile_of<Format, 1, 1>, tile_of<Format, 2, 1>, tile_of<Format, 3, 1>,  tile_of<Format, 4, 1>,
      tile_of<Format, 5, 1>, tile_of<Format, 6, 1>, tile_of<Format, 7, 1>,  tile_of<Format, 8, 1>,
      tile_of<Format, 9, 1>, tile_of<Format, 10, 1>, tile_of<Format, 11, 1>, tile_of<Format, 12, 1>,
  };
  static constexpr TileFunction wide[] = {
      tile_of<Format, 1, 2>, tile_of<Format, 2, 2>, tile_of<Format, 3, 2>,
      tile_of<Format, 4, 2>, tile_of<Format, 5, 2>, tile_of<Format, 6, 2>,
  };
  (t.outputs > kPanel ? wide : narrow)[t.rows - 1](t);
}

// Who includes this has defined TARGET, inside its own namespace.

constexpr int64_t kTransposed = 8;

// Row i of the result is word + i of all 8 rows; rows of the result are a panel apart.
TARGET inline void transpose(const char* const* rows, int64_t word, uint32_t* to) {
  for (int64_t row = 0; row < kTransposed; ++row)
    for (int64_t i = 0; i < kTransposed; ++i)
      __builtin_memcpy(to + i * kPanel + row, rows[row] + 4 * (word + i), 4);
}

// Who includes this has defined TARGET, inside its own namespace.

constexpr int64_t kTransposed = 16;

// Row i of the result is word + i of all 16 rows; rows of the result are a panel apart.
TARGET inline void transpose(const char* const* rows, int64_t word, uint32_t* to) {
  __m512i a[16], b[16];
  EACH(i, 16) a[i] = _mm512_loadu_si512(rows[i] + 4 * word);
  // pairs of words, then of pairs, then of quarters, then of halves
  EACH(i, 8) {
    b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
  }
  EACH(i, 4) {
    a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
    a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
    a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
    a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
  }
  EACH(i, 4) {
    b[i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88);
    b[4 + i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
    b[8 + i] = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
    b[12 + i] = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);
  }
  EACH(i, 8) {
    a[i] = _mm512_shuffle_i32x4(b[i], b[8 + i], 0x88);
    a[8 + i] = _mm512_shuffle_i32x4(b[i], b[8 + i], 0xdd);
  }
  EACH(i, 16) _mm512_storeu_si512(to + i * kPanel, a[i]);
}

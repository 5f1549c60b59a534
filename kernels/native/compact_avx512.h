// Groups of a compact panel made plain, one after another. Who includes this has defined TARGET inside its
// own namespace.

class Unpacking {
 public:
  TARGET Unpacking(const char* panel, int64_t depth) : group_(panel) {
    const CompactPanel layout(depth);
    largest_ = reinterpret_cast<const uint8_t*>(panel + layout.largest());
    end_ = largest_ + layout.groups;
    stray_ = reinterpret_cast<const Stray*>(panel + layout.strays());
  }

  // The next group, if there is one, of kGroupValues.
  TARGET void next(char* values) {
    if (largest_ == end_) return;
    const __m512i exponents = exponents_below(*largest_++);
    EACH(i, 8) {
      const __m512i codes = _mm512_loadu_si512(group_ + kRestsBytes + i * 64);
      unpack_two(group_ + i * 128, codes, _mm512_srli_epi16(codes, 4), exponents, values + i * 256);
      unpack_two(group_ + i * 128 + 64, _mm512_srli_epi16(codes, 8), _mm512_srli_epi16(codes, 12),
                 exponents, values + i * 256 + 128);
    }
    group_ += kGroupBytes;
    first_place_ += kGroupValues;
    for (; stray_->place < first_place_; ++stray_) {
      const int64_t at = stray_->place - (first_place_ - kGroupValues);
      __builtin_memcpy(values + 2 * at, &stray_->value, sizeof stray_->value);
    }
  }

 private:
  // What codes mean, in the place of an exponent; twice, since permutations look at 5 bits.
  TARGET static __m512i exponents_below(uint8_t largest) {
    alignas(64) static const uint16_t distances[kVector] = {
        0x000, 0x080, 0x100, 0x180, 0x200, 0x280, 0x300, 0x380, 0x400, 0x480, 0x500,
        0x580, 0x600, 0x680, 0x700, 0,     0x000, 0x080, 0x100, 0x180, 0x200, 0x280,
        0x300, 0x380, 0x400, 0x480, 0x500, 0x580, 0x600, 0x680, 0x700, 0};
    constexpr __mmask32 with_exponent = 0x7fff7fff;
    return _mm512_maskz_sub_epi16(with_exponent,
                                  _mm512_set1_epi16(static_cast<int16_t>(largest << 7)),
                                  _mm512_load_si512(distances));
  }

  // Two vectors, of whose codes bits above the lowest four are ignored.
  TARGET static void unpack_two(const char* rests, __m512i lower_codes, __m512i upper_codes,
                                __m512i exponents, char* values) {
    const __m512i upper = _mm512_loadu_si512(rests);
    const __m512i lower = _mm512_shuffle_epi8(upper, swapping_bytes());
    _mm512_storeu_si512(values, joined(lower, _mm512_permutexvar_epi16(lower_codes, exponents)));
    _mm512_storeu_si512(values + 64,
                        joined(upper, _mm512_permutexvar_epi16(upper_codes, exponents)));
  }

  TARGET static __m512i swapping_bytes() {
    return _mm512_set4_epi32(0x0e0f0c0d, 0x0a0b0809, 0x06070405, 0x02030001);
  }

  // The exponents, and of the rests what is not in their place.
  TARGET static __m512i joined(__m512i rests, __m512i exponents) {
    constexpr int kAndThenOr = 0xea;
    return _mm512_ternarylogic_epi64(rests, _mm512_set1_epi16(static_cast<int16_t>(0x807f)),
                                     exponents, kAndThenOr);
  }

  const char* group_;
  const uint8_t *largest_, *end_;
  const Stray* stray_;
  int64_t first_place_ = 0;
};

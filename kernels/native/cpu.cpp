#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace cadenza {
namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned part) {
  Registers found;
  __get_cpuid_count(leaf, part, &found.a, &found.b, &found.c, &found.d);
  return found;
}

bool has(unsigned bits, int bit) { return bits >> bit & 1; }

// Which registers the operating system saves for us.
unsigned saved_state() {
  if (!has(cpuid(1, 0).c, 27)) return 0;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

bool has_avx2() {
  const unsigned state = saved_state();
  return (state & 0x6) == 0x6 && has(cpuid(1, 0).c, 12) && has(cpuid(7, 0).b, 5);
}

bool has_avx512() {
  const unsigned features = cpuid(7, 0).b;  // f, dq, bw, vl
  return has_avx2() && (saved_state() & 0xe6) == 0xe6 && has(features, 16) && has(features, 17) &&
         has(features, 30) && has(features, 31);
}

bool has_avx512_vnni() { return has_avx512() && has(cpuid(7, 0).c, 11); }

bool has_avx512_bf16() { return has_avx512_vnni() && has(cpuid(7, 1).a, 5); }

bool has_amx() {
#if defined(__linux__)
  const unsigned features = cpuid(7, 0).d;
  if (!has_avx512_bf16() || (saved_state() & 0x60000) != 0x60000) return false;
  constexpr unsigned kBf16 = 1 << 22, kTile = 1 << 24, kInt8 = 1 << 25, kAll = kBf16 | kTile | kInt8;
  if ((features & kAll) != kAll) return false;
  // Linux gives a process the tiles when it asks; threads begun before have them too
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

#endif

struct Levels {
  const Level* found[7] = {};

  Levels() {
    int count = 0;
    const auto add = [&](bool runs, const Level* level) {
      if (runs && level != nullptr) found[count++] = level;
    };
    add(true, portable_level());
#if defined(__x86_64__)
    add(has_avx2(), avx2_level());
    add(has_avx512(), avx512_level());
    add(has_avx512_vnni(), avx512_vnni_level());
    add(has_avx512_bf16(), avx512_bf16_level());
    add(has_amx(), amx_level());
#endif
  }
};

}  // namespace

const Level* const* levels() {
  static const Levels levels;
  return levels.found;
}

}  // namespace cadenza

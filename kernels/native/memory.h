// Memory that begins at a cache line.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace cadenza {

struct Freed {
  void operator()(char* memory) const { ::operator delete(memory, std::align_val_t{64}); }
};

using Memory = std::unique_ptr<char, Freed>;

// Throws std::bad_alloc.
inline Memory allocate(int64_t bytes) {
  return Memory(
      static_cast<char*>(::operator new(static_cast<size_t>(bytes), std::align_val_t{64})));
}

}  // namespace cadenza

// Products over a packed weight.
#pragma once

#include "compact.h"
#include "level.h"

namespace cadenza {

inline int64_t panel_bytes(int64_t inputs, int32_t dtype) {
  if (dtype == kCompactBfloat16) return CompactPanel(padded_depth(inputs, dtype)).bytes();
  const int64_t scales = dtype == kInt8 ? sizeof(PanelScales) : 0;
  return padded_depth(inputs, dtype) * kPanel * size_of(dtype) + scales;
}

// A weight that was packed.
struct Packed {
  const char* panels;
  int64_t outputs;
  int64_t inputs;

  int64_t panel_bytes(int32_t dtype) const { return cadenza::panel_bytes(inputs, dtype); }
};

int64_t packed_bytes(int64_t outputs, int64_t inputs, int32_t dtype);

// weight: [outputs, inputs] of fp32 or bf16 -> packed: `packed_bytes`, the same for all levels.
void pack(int32_t threads, const void* weight, int64_t outputs, int64_t inputs, int32_t dtype, void* packed);

// Quantises it first, an output's largest value to the code 127. False where a value is not finite.
bool pack_int8(int32_t threads, const void* weight, int64_t outputs, int64_t inputs, int32_t dtype,
               void* packed);

// Whether a weight of bf16 can be packed in 12 bits a value: not where values differ too much in size.
bool fits_compact(int32_t threads, const void* weight, int64_t outputs, int64_t inputs);

// Packs one that fits.
void pack_compact(int32_t threads, const void* weight, int64_t outputs, int64_t inputs, void* packed);

// Rows times a weight. Those of x have `padded_depth` inputs of the dtype, zeros at the end; of int8
// whatever is there, and then their scale.
struct Product {
  const Kernel* kernel;
  int32_t dtype;
  const char* x;
  int64_t x_stride;  // bytes
  int64_t rows;
  Packed weight;
  Finish finish;
  char* y;
  int64_t y_stride;  // bytes

  // Computes it on at most `threads` threads.
  void run(int32_t threads) const;

  // Computes the rows for one tile's outputs here and now, and fetches what comes next.
  void compute(int64_t first_row, int64_t last_row, int64_t output, const Fetch& ahead) const;

  // After the last `compute` of a thread, which may not have finished.
  void end() const;

  // The packed weight of an output and those after it; the output begins a panel.
  const char* panel(int64_t output) const {
    return weight.panels + output / kPanel * weight.panel_bytes(dtype);
  }

  // The panels of a tile of so many outputs, fewer at the end.
  Fetch panels(int64_t output, int64_t width) const;
};

}  // namespace cadenza

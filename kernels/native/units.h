// Scores and weighted sums over units of keys and values.
#pragma once

#include "level.h"

namespace cadenza {

// By what the level has for it, or by its tiles of products.
void compute_scores(const Level& level, int32_t dtype, const Scores& scores);
void weigh(const Level& level, int32_t dtype, const Weighing& weighing);

// After a thread's last ones.
void end_units(const Level& level, int32_t dtype);

}  // namespace cadenza

// Which levels this machine may run.
#pragma once

#include "level.h"

namespace cadenza {

// The levels that this machine has, slowest first; null past the last.
const Level* const* levels();

}  // namespace cadenza

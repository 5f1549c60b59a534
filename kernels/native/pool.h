// A few threads that wait for work.
#pragma once

#include <cstdint>

namespace cadenza {

// `next` is what the same thread does after it, kNoTask: nothing.
using Task = void (*)(void* context, int64_t index, int64_t next);
constexpr int64_t kNoTask = -1;

// Calls task(context, index, next) for each index below `count`, on at most `threads` threads, the
// caller among them, and returns when all are done. Who takes which index is left to chance.
void run_tasks(int32_t threads, int64_t count, Task task, void* context);

}  // namespace cadenza

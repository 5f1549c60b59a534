// The caller takes part and never waits for a thread that has not begun: where another process has
// the core, the caller does all the work. A thread that has worked looks for more for a moment, and
// then sleeps, so that it takes nothing from torch's threads and the front process.
#include "pool.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace cadenza {
namespace {

// In steps of the demo model beside other load 20 us were no slower than 0 and 5, and faster than 50:
// most of what torch computes between two products takes longer, and wants the core
constexpr auto kSpin = std::chrono::microseconds(20);
constexpr int kPauses = 2000;  // some 50 us, before a core is offered to others
constexpr int32_t kMostThreads = 256;

// How a thread rounds and whether it flushes denormals: the same for all who work at a product.
#if defined(__x86_64__)
constexpr uint32_t kFlags = 0x3f;  // what has happened in a thread, which is its own
uint32_t rounding() { return _mm_getcsr() & ~kFlags; }
void set_rounding(uint32_t control) { _mm_setcsr(control); }
#else
uint32_t rounding() { return 0; }
void set_rounding(uint32_t) {}
#endif

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  // False when somebody else is using the pool, or no thread can be had.
  bool run(int32_t threads, int64_t count, Task task, void* context) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    if (!grow(threads - 1)) return false;
    task_ = task;
    context_ = context;
    count_ = count;
    wanted_ = threads - 1;
    rounding_ = rounding();
    next_.store(0, std::memory_order_relaxed);
    open_.store(true);
    round_.fetch_add(1);
    if (sleeping_.load() > 0) {
      { std::lock_guard<std::mutex> lock(mutex_); }
      wake_.notify_all();
    }
    work();
    open_.store(false);
    // who came before the work was closed may still be at a task of it, or wait for a core
    for (int i = 0; inside_.load() > 0; ++i) {
      if (i < kPauses)
        pause();
      else
        std::this_thread::yield();
    }
    return true;
  }

 private:
  bool grow(int32_t wanted) {
    while (size_ < wanted) {
      sigset_t all, before;
      sigfillset(&all);
      // signals are for Python's threads
      pthread_sigmask(SIG_SETMASK, &all, &before);
      bool started = true;
      try {
        std::thread(&Pool::serve, this, size_, round_.load()).detach();
      } catch (...) {
        started = false;
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      if (!started) return false;
      ++size_;
    }
    return true;
  }

  void serve(int32_t number, uint64_t seen) {
    for (;;) {
      seen = await(seen);
      inside_.fetch_add(1);
      if (open_.load() && number < wanted_) {
        set_rounding(rounding_);
        work();
      }
      inside_.fetch_sub(1);
    }
  }

  uint64_t await(uint64_t seen) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 16; ++i) {
        const uint64_t round = round_.load(std::memory_order_acquire);
        if (round != seen) return round;
        pause();
      }
    } while (std::chrono::steady_clock::now() < end);
    std::unique_lock<std::mutex> lock(mutex_);
    sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return round_.load() != seen; });
    sleeping_.fetch_sub(1);
    return round_.load();
  }

  void work() {
    int64_t index = take();
    while (index < count_) {
      const int64_t next = take();
      task_(context_, index, next < count_ ? next : kNoTask);
      index = next;
    }
  }

  int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  std::mutex turn_;  // whose work it is
  int32_t size_ = 0;
  Task task_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  int32_t wanted_ = 0;
  uint32_t rounding_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> round_{0};
  std::atomic<bool> open_{false};
  alignas(64) std::atomic<int32_t> inside_{0};
  std::atomic<int32_t> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// Never destroyed: its threads outlive main. A forked child has none of them and makes its own.
std::atomic<Pool*> pool{nullptr};

void forget_pool() { pool.store(new Pool); }

Pool* the_pool() {
  static std::once_flag once;
  std::call_once(once, [] {
    pool.store(new Pool);
    pthread_atfork(nullptr, nullptr, forget_pool);
  });
  return pool.load();
}

}  // namespace

void run_tasks(int32_t threads, int64_t count, Task task, void* context) {
  if (threads > kMostThreads) threads = kMostThreads;
  if (threads > count) threads = static_cast<int32_t>(count);
  if (threads > 1 && the_pool()->run(threads, count, task, context)) return;
  for (int64_t index = 0; index < count; ++index)
    task(context, index, index + 1 < count ? index + 1 : kNoTask);
}

}  // namespace cadenza

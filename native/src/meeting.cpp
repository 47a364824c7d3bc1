// A barrier of processes by the kernel's futex.
#include "hpcrec/meeting.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace hpcrec {
namespace {
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
constexpr int64_t second_ns = 1'000'000'000;
constexpr int looks = 64;  // between two readings of the clock

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * second_ns + now.tv_nsec;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Not of the private kind: other processes sleep on the word. An interrupt, or a word that has changed, ends it too.
long futex(std::atomic<uint32_t>* word, int what, uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), what, value, limit, nullptr, 0);
}
}  // namespace

Meeting::Meeting(uint32_t* words, int64_t spin_ns)
    : there_(reinterpret_cast<std::atomic<uint32_t>*>(words)),
      opened_(reinterpret_cast<std::atomic<uint32_t>*>(words + 1)),
      spin_ns_(spin_ns) {}

void Meeting::expect() {
  ++due_;
  looked_ = false;
}

bool Meeting::come(uint32_t processes) {
  expect();
  if (there_->fetch_add(1, std::memory_order_acq_rel) + 1 != processes) return false;
  there_->store(0, std::memory_order_relaxed);  // before anybody is let go, who may come to the next one at once
  return true;
}

void Meeting::open() {
  opened_->fetch_add(1, std::memory_order_acq_rel);
  futex(opened_, FUTEX_WAKE, INT_MAX, nullptr);
}

bool Meeting::met() const {
  return static_cast<int32_t>(opened_->load(std::memory_order_acquire) - due_) >= 0;
}

bool Meeting::wait(int64_t limit_ns) {
  const int64_t until = now_ns() + limit_ns;
  if (spin_ns_ > 0 && !looked_) {
    looked_ = true;
    const int64_t looks_until = now_ns() + (spin_ns_ < limit_ns ? spin_ns_ : limit_ns);
    do {
      for (int i = 0; i < looks; ++i) {
        if (met()) return true;
        relax();
      }
    } while (now_ns() < looks_until);
  }
  for (;;) {
    const uint32_t opened = opened_->load(std::memory_order_acquire);
    const int64_t left_ns = until - now_ns();
    if (met()) return true;
    if (left_ns <= 0) return false;
    const timespec limit{left_ns / second_ns, left_ns % second_ns};
    futex(opened_, FUTEX_WAIT, opened, &limit);
  }
}

}  // namespace hpcrec

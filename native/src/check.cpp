// Checks of contents, and the thread count of the calling thread.
#include "hpcrec/check.h"

#include <atomic>
#include <stdexcept>
#include <string>

#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
thread_local int n_threads = 1;

// Whether all values lie in [0, limit): as one unsigned comparison, folded without a branch.
bool all_below(const int64_t* values, int64_t n, int64_t limit) {
  const uint64_t bound = static_cast<uint64_t>(limit);
  int64_t outside = 0;
  for (int64_t i = 0; i < n; ++i) outside |= static_cast<int64_t>(static_cast<uint64_t>(values[i]) >= bound);
  return outside == 0;
}

[[noreturn]] void refuse(const std::string& message) {
  throw std::invalid_argument(message);
}
}  // namespace

int threads() {
  return n_threads;
}

void set_threads(int n) {
  if (n < 1) refuse("set_threads: " + std::to_string(n) + " threads; at least 1 is needed");
  n_threads = n;
}

void require_below(const char* name, const int64_t* values, int64_t n, int64_t limit) {
  std::atomic<bool> good{true};
  parallel(team(n), [&](int member, int members) {
    const Range mine = share(n, member, members);
    if (!all_below(values + mine.first, mine.last - mine.first, limit)) good = false;
  });
  if (good) return;
  for (int64_t i = 0; i < n; ++i)
    if (values[i] < 0 || values[i] >= limit)
      refuse(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
             "; allowed are 0 <= value < " + std::to_string(limit));
}

int64_t require_offsets(const char* name, const int64_t* offsets, int64_t n, int64_t n_ids) {
  std::atomic<int64_t> shortest{0}, longest{0};
  parallel(team(n), [&](int member, int members) {
    const Range mine = share(n, member, members);
    int64_t low = 0, high = 0;
    for (int64_t v = mine.first; v < mine.last; ++v) {
      const int64_t length = offsets[v + 1] - offsets[v];
      low = std::min(low, length);
      high = std::max(high, length);
    }
    for (int64_t seen = shortest; low < seen && !shortest.compare_exchange_weak(seen, low);) {
    }
    for (int64_t seen = longest; high > seen && !longest.compare_exchange_weak(seen, high);) {
    }
  });
  if (offsets[0] != 0 || offsets[n] != n_ids || shortest < 0)
    refuse(std::string(name) + " must begin at 0, never fall and end at " + std::to_string(n_ids) + "; it begins at " +
           std::to_string(offsets[0]) + " and ends at " + std::to_string(offsets[n]) +
           (shortest < 0 ? ", and falls" : ""));
  return longest;
}

void require_vectors(const char* name, const int64_t* starts, int64_t n, int64_t width, int64_t size) {
  if (n == 0) return;
  if (starts) {
    require_below(name, starts, n, std::max<int64_t>(0, size - width + 1));
  } else if (n * width > size) {
    refuse(std::string(name) + ": " + std::to_string(n) + " vectors of " + std::to_string(width) +
           " elements do not fit into " + std::to_string(size) + " elements");
  }
}

}  // namespace hpcrec

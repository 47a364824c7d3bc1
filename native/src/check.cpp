// What was refused, in words; and the thread count of the calling thread.
#include "hpcrec/check.h"

#include <stdexcept>
#include <string>

#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
thread_local int n_threads = 1;

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
  for (int64_t i = 0; i < n; ++i)
    if (values[i] < 0 || values[i] >= limit)
      refuse(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
             "; allowed are 0 <= value < " + std::to_string(limit));
}

void require_offsets(const char* name, const int64_t* offsets, int64_t n, int64_t n_ids) {
  bool falls = false;
  for (int64_t v = 0; v < n; ++v) falls |= offsets[v + 1] < offsets[v];
  if (offsets[0] != 0 || offsets[n] != n_ids || falls)
    refuse(std::string(name) + " must begin at 0, never fall and end at " + std::to_string(n_ids) + "; it begins at " +
           std::to_string(offsets[0]) + " and ends at " + std::to_string(offsets[n]) + (falls ? ", and falls" : ""));
}

void require_vectors(const char* name, const int64_t* starts, int64_t n, int64_t width, int64_t size) {
  if (starts) require_below(name, starts, n, std::max<int64_t>(0, size - width + 1));
  else if (n > size / width)
    refuse(std::string(name) + ": " + std::to_string(n) + " vectors of " + std::to_string(width) +
           " elements do not fit into " + std::to_string(size) + " elements");
}

void refuse_changed(const char* kernel) {
  refuse(std::string(kernel) + ": its arguments were changed by another thread while it ran");
}

}  // namespace hpcrec

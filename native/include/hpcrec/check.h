// Content checks that NumPy cannot make cheaply: what is refused here would read or write outside an array.
//
// A kernel looks at each piece just before it works on it (in the thread that does, with the data then in its cache)
// and only notes that something is wrong; what it was is found again afterwards, at leisure, by the functions that
// throw std::invalid_argument, a ValueError in Python. Other pieces may have been written by then.
#pragma once
#include <atomic>
#include <cstdint>

namespace hpcrec {

// Whether all values lie in [0, limit): one unsigned comparison each, folded without a branch.
inline bool all_below(const int64_t* values, int64_t n, int64_t limit) {
  const uint64_t bound = static_cast<uint64_t>(limit);
  int64_t outside = 0;
  for (int64_t i = 0; i < n; ++i) outside |= static_cast<int64_t>(static_cast<uint64_t>(values[i]) >= bound);
  return outside == 0;
}

// Whether bags [first, last) have bounds that never fall and lie in [0, n_ids].
inline bool all_bags(const int64_t* offsets, int64_t first, int64_t last, int64_t n_ids) {
  if (first > last || !all_below(offsets + first, last - first + 1, n_ids + 1)) return false;
  int64_t falls = 0;
  for (int64_t v = first; v < last; ++v) falls |= static_cast<int64_t>(offsets[v + 1] < offsets[v]);
  return falls == 0;
}

// Whether vectors [first, last) that begin at starts (null: one after the other) lie in an array of `size` elements.
inline bool all_vectors(const int64_t* starts, int64_t first, int64_t last, int64_t width, int64_t size) {
  if (!starts) return last <= size / width;  // a product could overflow: arrays without rows may be of any width
  return all_below(starts + first, last - first, size < width ? 0 : size - width + 1);
}

// The same of whole arrays, with a message: offsets must also begin at 0 and end at n_ids.
void require_below(const char* name, const int64_t* values, int64_t n, int64_t limit);
void require_offsets(const char* name, const int64_t* offsets, int64_t n, int64_t n_ids);
void require_vectors(const char* name, const int64_t* starts, int64_t n, int64_t width, int64_t size);
// For the end of a search that found nothing: the arrays were written to in between.
[[noreturn]] void refuse_changed(const char* kernel);

}  // namespace hpcrec

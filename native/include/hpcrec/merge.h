// Summing gradients by row, for any taker of the sums: merge writes them down, merge_update applies them.
//
// A sum is made of blocks of block_size occurrences; a block adds its occurrences in order from 0, and blocks are
// folded in order. Blocks of long sums are spread over the threads first; then each row is finished by one thread. So
// the order of additions depends on nothing but the occurrences.
#pragma once
#include <memory>
#include <vector>

#include "hpcrec/check.h"
#include "hpcrec/learn.h"
#include "hpcrec/parallel.h"
#include "hpcrec/row.h"

namespace hpcrec {

template <class T, int W> class Merger {
  const Occurrences<T>& from_;
  const int64_t width_, ahead_;

 public:
  explicit Merger(const Occurrences<T>& from)
      : from_(from),
        width_(W ? W : from.width),
        ahead_(std::max<int64_t>(4, std::min<int64_t>(24, 4096 / (width_ * static_cast<int64_t>(sizeof(T)))))) {}

  // Asks for the gradient of the occurrence some places on, and for where the one twice as far is.
  void look_ahead(int64_t j, int64_t last) const {
    __builtin_prefetch(from_.source_start + from_.order[std::min(j + 2 * ahead_, last)], 0, 3);
    prefetch_row(from_.gradients + from_.source_start[from_.order[std::min(j + ahead_, last)]], width_);
  }

  // Sum of occurrences [first, end) into g; the caller goes on to read up to `last`.
  void sum(int64_t first, int64_t end, int64_t last, T* g) const {
    Sum<T, W> total(g, width_);
    for (int64_t j = first; j < end; ++j) {
      look_ahead(j, last);
      const int64_t k = from_.order[j];
      const T* gradient = from_.gradients + from_.source_start[k];
      if (from_.weights) total.add(gradient, from_.weights[k]);
      else total.add(gradient);
    }
    total.store(g);
  }
};

// Partial sums of the rows whose occurrences need more than one block.
template <class T> struct Partials {
  std::vector<int64_t> rows;    // u of each such row, ascending
  std::vector<int64_t> starts;  // its first block; one more at the end
  std::unique_ptr<T[]> sums;    // [blocks, width]
};

template <class T, int W> Partials<T> sum_long_rows(const Occurrences<T>& from, int64_t longest, int n_team) {
  Partials<T> partials;
  partials.starts.push_back(0);
  if (longest <= block_size) return partials;
  for (int64_t u = 0; u < from.n_unique; ++u) {
    const int64_t length = from.segments[u + 1] - from.segments[u];
    if (length <= block_size) continue;
    partials.rows.push_back(u);
    partials.starts.push_back(partials.starts.back() + (length + block_size - 1) / block_size);
  }
  const int64_t n_blocks = partials.starts.back();
  partials.sums.reset(new T[n_blocks * from.width]);
  const Merger<T, W> merger(from);
  parallel_pieces(n_team, [&](int member, int members) {
    const Range mine = share(n_blocks, member, members);
    size_t i = 0;
    for (int64_t b = mine.first; b < mine.last; ++b) {
      while (partials.starts[i + 1] <= b) ++i;
      const int64_t u = partials.rows[i], end = from.segments[u + 1];
      const int64_t first = from.segments[u] + (b - partials.starts[i]) * block_size;
      merger.sum(first, std::min(first + block_size, end), end - 1, partials.sums.get() + b * from.width);
    }
  });
  return partials;
}

// Calls taker.take<W>(u, g) with each row's sum g, and taker.prefetch(u) some rows before; taker.memory(u, spare) says
// where the sum is to be put.
template <class T, int W, class Taker>
void merge_into(const Occurrences<T>& from, int64_t longest, const Taker& taker) {
  const int n_team = team(from.n_occurrences * from.width);
  const Partials<T> partials = sum_long_rows<T, W>(from, longest, n_team);
  const int64_t width = W ? W : from.width;
  parallel_pieces(n_team, [&](int member, int members) {
    const Range mine = share_bags(from.segments, from.n_unique, member, members);
    std::unique_ptr<T[]> spare(new T[width]);
    const Merger<T, W> merger(from);
    constexpr int64_t ahead = 8;
    const int64_t last = from.segments[mine.last] - 1;
    size_t i = std::lower_bound(partials.rows.begin(), partials.rows.end(), mine.first) - partials.rows.begin();
    for (int64_t u = mine.first; u < mine.last; ++u) {
      taker.prefetch(std::min(u + ahead, mine.last - 1));
      T* g = taker.memory(u, spare.get());
      if (i == partials.rows.size() || partials.rows[i] != u) {
        merger.sum(from.segments[u], from.segments[u + 1], last, g);
      } else {
        Sum<T, W> total(g, width);
        for (int64_t b = partials.starts[i]; b < partials.starts[i + 1]; ++b)
          total.add(partials.sums.get() + b * width);
        total.store(g);
        ++i;
      }
      taker.template take<W>(u, g);
    }
  });
}

// Refuses what would read outside the arrays. Returns the largest number of occurrences of a row.
template <class T> int64_t require_occurrences(const Occurrences<T>& from) {
  const int64_t longest = require_offsets("segments", from.segments, from.n_unique, from.n_occurrences);
  require_below("order", from.order, from.n_occurrences, from.n_occurrences);
  require_vectors("source_start", from.source_start, from.n_occurrences, from.width, from.gradients_size);
  return longest;
}

}  // namespace hpcrec

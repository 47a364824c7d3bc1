// Summing gradients by row, for any taker of the sums: merge writes them down, merge_update applies them.
//
// A sum is made of blocks of block_size occurrences; a block adds its occurrences in order from 0, and blocks are
// folded in order. A row of one block is summed by one thread; blocks of longer rows are spread over the threads. So
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
      : from_(from), width_(W ? W : from.width), ahead_(rows_ahead<T>(width_)) {}

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

// Rows whose occurrences need more than one block: their blocks are summed by all threads, then folded in order.
template <class T, int W, class Taker>
void merge_long_rows(const Occurrences<T>& from, const std::vector<int64_t>& rows, int n_team, const Taker& taker) {
  std::vector<int64_t> starts{0};  // each row's first block
  for (int64_t u : rows)
    starts.push_back(starts.back() + (from.segments[u + 1] - from.segments[u] + block_size - 1) / block_size);
  const int64_t n_blocks = starts.back(), width = W ? W : from.width;
  std::unique_ptr<T[]> sums(new T[n_blocks * width]), spare(new T[width]);
  parallel_pieces(n_team, [&](int piece, int pieces) {
    const Merger<T, W> merger(from);
    const Range mine = share(n_blocks, piece, pieces);
    size_t i = std::upper_bound(starts.begin(), starts.end(), mine.first) - starts.begin() - 1;
    for (int64_t b = mine.first; b < mine.last; ++b) {
      while (starts[i + 1] <= b) ++i;
      const int64_t end = from.segments[rows[i] + 1];
      const int64_t first = from.segments[rows[i]] + (b - starts[i]) * block_size;
      merger.sum(first, std::min(first + block_size, end), end - 1, sums.get() + b * width);
    }
  });
  // One addition for block_size of those above: no work for a team.
  for (size_t i = 0; i < rows.size(); ++i) {
    T* g = taker.memory(rows[i], spare.get());
    Sum<T, W> total(g, width);
    for (int64_t b = starts[i]; b < starts[i + 1]; ++b) total.add(sums.get() + b * width);
    total.store(g);
    taker.template take<W>(rows[i], g);
  }
}

// Whether rows [first, last) and their occurrences point into their arrays.
template <class T> bool all_occurrences(const Occurrences<T>& from, Range mine) {
  if (!all_bags(from.segments, mine.first, mine.last, from.n_occurrences)) return false;
  const int64_t first = from.segments[mine.first], n = from.segments[mine.last] - first;
  if (!all_below(from.order + first, n, from.n_occurrences)) return false;
  const uint64_t bound = from.gradients_size < from.width ? 0 : from.gradients_size - from.width + 1;
  int64_t outside = 0;
  for (int64_t j = first; j < first + n; ++j)
    outside |= static_cast<int64_t>(static_cast<uint64_t>(from.source_start[from.order[j]]) >= bound);
  return outside == 0;
}

// Calls taker.take<W>(u, g) with each row's sum g, and taker.prefetch(u) some rows before; taker.memory(u, spare) says
// where the sum is to be put; taker.accepts(range) whether those rows are the taker's. Returns whether all was valid.
template <class T, int W, class Taker> bool merge_into(const Occurrences<T>& from, const Taker& taker) {
  if (from.segments[0] != 0 || from.segments[from.n_unique] != from.n_occurrences) return false;
  const int n_team = team(from.n_occurrences * from.width);
  std::atomic<bool> good{true};
  std::vector<std::vector<int64_t>> long_rows(pieces_of(n_team));
  parallel_pieces(n_team, [&](int piece, int pieces) {
    const Range mine = share_bags(from.segments, from.n_unique, piece, pieces);
    if (!all_occurrences(from, mine) || !taker.accepts(mine)) {
      good = false;
      return;
    }
    std::unique_ptr<T[]> spare(new T[W ? W : from.width]);
    const Merger<T, W> merger(from);
    const int64_t ahead = rows_ahead<T>(from.width);
    const int64_t last = from.segments[mine.last] - 1;
    for (int64_t u = mine.first; u < mine.last; ++u) {
      taker.prefetch(std::min(u + ahead, mine.last - 1));
      if (from.segments[u + 1] - from.segments[u] > block_size) {
        long_rows[piece].push_back(u);
        continue;
      }
      T* g = taker.memory(u, spare.get());
      merger.sum(from.segments[u], from.segments[u + 1], last, g);
      taker.template take<W>(u, g);
    }
  });
  std::vector<int64_t> rows;
  for (const auto& found : long_rows) rows.insert(rows.end(), found.begin(), found.end());
  if (good && !rows.empty()) merge_long_rows<T, W>(from, rows, n_team, taker);
  return good;
}

template <class T> void require_occurrences(const Occurrences<T>& from) {
  require_offsets("segments", from.segments, from.n_unique, from.n_occurrences);
  require_below("order", from.order, from.n_occurrences, from.n_occurrences);
  require_vectors("source_start", from.source_start, from.n_occurrences, from.width, from.gradients_size);
}

}  // namespace hpcrec

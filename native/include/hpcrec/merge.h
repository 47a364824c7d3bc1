// Summing gradients by row, for any taker of the sums: merge writes them down, merge_update applies them.
//
// A sum is made of blocks of block_size occurrences; a block adds its occurrences in order from 0, and blocks are
// folded in order. A row is summed by one thread, except where it has so many occurrences that the others would wait
// for it: its blocks are then spread over the threads. So the order of additions depends on nothing but the
// occurrences.
#pragma once
#include <memory>
#include <vector>

#include "hpcrec/check.h"
#include "hpcrec/learn.h"
#include "hpcrec/parallel.h"
#include "hpcrec/row.h"

namespace hpcrec {

// Walks occurrences in order. Where gradients begin is found, and asked for, a batch ahead of the one in work.
// BESIDE: and those of a table of width 1.
template <class T, int W, bool BESIDE> class Merger {
  static constexpr int64_t most_ahead = 64;  // a power of two
  const Occurrences<T>& from_;
  const int64_t width_, ahead_, end_;  // of the occurrences to come
  const uint64_t bound_;               // of starts
  int64_t found_ = 0;                  // starts before this occurrence are known
  int64_t outside_ = 0;
  int64_t start_[2 * most_ahead];  // of the occurrences [found_ - 2 ahead_, found_), each at its number modulo the size
  int64_t beside_start_[BESIDE ? 2 * most_ahead : 1];

  static uint64_t slot(int64_t j) { return static_cast<uint64_t>(j) % (2 * most_ahead); }

  HPCREC_INLINE void find_batch() {
    const int64_t last = std::min(found_ + ahead_, end_);
    for (int64_t j = found_; j < last; ++j) {
      const uint64_t source = static_cast<uint64_t>(from_.order[j]);
      const bool there = source < static_cast<uint64_t>(from_.n_sources);
      const uint64_t start = static_cast<uint64_t>(from_.source_start[there ? source : 0]);
      const bool good = there && start < bound_;
      outside_ |= static_cast<int64_t>(!good);
      const int64_t from = good ? static_cast<int64_t>(start) : 0;
      start_[slot(j)] = from;
      prefetch_row<W>(from_.gradients + from, width_);
      if constexpr (BESIDE) {
        const uint64_t narrow = static_cast<uint64_t>(from_.beside_start[there ? source : 0]);
        const bool fits = narrow < static_cast<uint64_t>(from_.gradients_size);
        outside_ |= static_cast<int64_t>(!fits);
        beside_start_[slot(j)] = fits ? static_cast<int64_t>(narrow) : 0;
      }
    }
    found_ = last;
  }

  T weight_of(int64_t source) const {
    return static_cast<uint64_t>(source) < static_cast<uint64_t>(from_.n_sources) ? from_.weights[source] : T{0};
  }

 public:
  // For occurrences up to `end`, of which there is at least one source, with room for a gradient.
  Merger(const Occurrences<T>& from, int64_t end)
      : from_(from),
        width_(W ? W : from.width),
        ahead_(std::min(most_ahead, 2 * rows_ahead<T>(width_))),
        end_(end),
        bound_(static_cast<uint64_t>(from.gradients_size - from.width + 1)) {}

  // Whether all occurrences so far pointed into their arrays; what did not was read as the first gradient.
  bool good() const { return outside_ == 0; }

  // Adds occurrences [first, last) to a sum, and to that beside.
  HPCREC_INLINE void add(int64_t first, int64_t last, Sum<T, W>& sum, T& beside) {
    found_ = std::max(found_, first);
    for (int64_t j = first; j < last;) {
      while (j + ahead_ >= found_ && found_ < end_) find_batch();
      const int64_t until = std::min(last, found_ == end_ ? end_ : found_ - ahead_);
      for (; j < until; ++j) {
        const T* gradient = from_.gradients + start_[slot(j)];
        const T* narrow = from_.gradients + (BESIDE ? beside_start_[slot(j)] : 0);
        if (from_.weights) {
          const T weight = weight_of(from_.order[j]);
          sum.add(gradient, weight);
          if constexpr (BESIDE) beside += weight * *narrow;
        } else {
          sum.add(gradient);
          if constexpr (BESIDE) beside += *narrow;
        }
      }
    }
  }

  // Sum of occurrences [first, last) into g, block by block; `spare` has room for a block's sum. Returns that beside.
  HPCREC_INLINE T sum(int64_t first, int64_t last, T* g, T* spare) {
    if (last - first > block_size) return sum_blocks(first, last, g, spare);
    Sum<T, W> total(g, width_);
    T beside = 0;
    add(first, last, total, beside);
    total.store(g);
    return beside;
  }

  __attribute__((noinline)) T sum_blocks(int64_t first, int64_t last, T* g, T* spare) {
    Sum<T, W> total(g, width_);
    T beside = 0;
    for (; first < last; first += block_size) {
      Sum<T, W> block(spare, width_);
      T block_beside = 0;
      add(first, std::min(first + block_size, last), block, block_beside);
      total.add(block);
      beside += block_beside;
    }
    total.store(g);
    return beside;
  }
};

// Memory for the sums of a batch of rows and of a block, on the stack where the width is known.
template <class T, int W> struct Spare {
  alignas(64) T rows[batch_rows<T>(W) * W], block[W];
  explicit Spare(int64_t) {}
};
template <class T> struct Spare<T, 0> {
  std::unique_ptr<T[]> memory;
  T *rows, *block;
  explicit Spare(int64_t width)
      : memory(new T[(batch_rows<T>(width) + 1) * width]),
        rows(memory.get()),
        block(rows + batch_rows<T>(width) * width) {}
};

// Rows of very many occurrences: their blocks are summed by all threads, then folded in order.
template <class T, int W, bool BESIDE, class Taker>
bool merge_long_rows(const Occurrences<T>& from, const std::vector<int64_t>& rows, int n_team, const Taker& taker) {
  std::vector<int64_t> starts{0};  // each row's first block
  for (int64_t u : rows)
    starts.push_back(starts.back() + (from.segments[u + 1] - from.segments[u] + block_size - 1) / block_size);
  const int64_t n_blocks = starts.back(), width = W ? W : from.width;
  std::unique_ptr<T[]> sums(new T[n_blocks * width]), beside(new T[BESIDE ? n_blocks : 1]);
  std::atomic<bool> good{true};
  parallel_pieces(n_team, [&](int piece, int pieces) {
    const Range mine = share(n_blocks, piece, pieces);
    Spare<T, W> spare(width);
    size_t i = std::upper_bound(starts.begin(), starts.end(), mine.first) - starts.begin() - 1;
    for (int64_t b = mine.first; b < mine.last;) {
      while (starts[i + 1] <= b) ++i;
      const int64_t end = from.segments[rows[i] + 1];
      Merger<T, W, BESIDE> merger(from, end);
      for (; b < std::min(starts[i + 1], mine.last); ++b) {
        const int64_t first = from.segments[rows[i]] + (b - starts[i]) * block_size;
        const T narrow = merger.sum(first, std::min(first + block_size, end), sums.get() + b * width, spare.block);
        if constexpr (BESIDE) beside[b] = narrow;
      }
      if (!merger.good()) good = false;
    }
  });
  // One addition for block_size of those above: no work for a team.
  Spare<T, W> spare(width);
  for (size_t i = 0; i < rows.size(); ++i) {
    T* g = taker.memory(rows[i], spare.rows);
    Sum<T, W> total(g, width);
    T narrow = 0;
    for (int64_t b = starts[i]; b < starts[i + 1]; ++b) {
      total.add(sums.get() + b * width);
      if constexpr (BESIDE) narrow += beside[b];
    }
    total.store(g);
    taker.template take<W>(rows[i], 1, g, &narrow);
  }
  return good;
}

// Calls taker.take<W>(u, n, g, beside) with the sums of rows [u, u + n), n at most batch_rows, and taker.prefetch<W>(u)
// a batch before; taker.memory(u, spare) says where the sums from row u on are to be put; taker.accepts(range) whether
// those rows are the taker's. Returns whether all was valid.
template <class T, int W, bool BESIDE, class Taker> bool merge_into(const Occurrences<T>& from, const Taker& taker) {
  if (from.segments[0] != 0 || from.segments[from.n_unique] != from.n_occurrences) return false;
  if (from.n_occurrences && (from.n_sources == 0 || from.gradients_size < from.width)) return false;
  const int n_team = team(from.n_occurrences * from.width);
  const int64_t too_long = n_team == 1 ? from.n_occurrences : from.n_occurrences / (2 * pieces_of(n_team)) + block_size;
  std::atomic<bool> good{true};
  std::vector<std::vector<int64_t>> long_rows(pieces_of(n_team));
  parallel_pieces(n_team, [&](int piece, int pieces) {
    const Range mine = share_bags(from.segments, from.n_unique, piece, pieces);
    if (!all_bags(from.segments, mine.first, mine.last, from.n_occurrences) || !taker.accepts(mine)) {
      good = false;
      return;
    }
    const int64_t width = W ? W : from.width, most = batch_rows<T>(width);
    Spare<T, W> spare(width);
    T beside[BESIDE ? most_batch_rows : 1];
    Merger<T, W, BESIDE> merger(from, from.segments[mine.last]);
    for (int64_t u = mine.first; u < std::min(mine.first + most, mine.last); ++u) taker.template prefetch<W>(u);
    for (int64_t u = mine.first; u < mine.last;) {
      T* sums = taker.memory(u, spare.rows);
      const int64_t first_u = u, last_u = std::min(u + most, mine.last);
      for (; u < last_u; ++u) {
        taker.template prefetch<W>(std::min(u + most, mine.last - 1));
        const int64_t first = from.segments[u], last = from.segments[u + 1];
        if (last - first > too_long) break;
        const T narrow = merger.sum(first, last, sums + (u - first_u) * width, spare.block);
        if constexpr (BESIDE) beside[u - first_u] = narrow;
      }
      taker.template take<W>(first_u, u - first_u, sums, beside);
      if (u < last_u) long_rows[piece].push_back(u++);
    }
    if (!merger.good()) good = false;
  });
  std::vector<int64_t> rows;
  for (const auto& found : long_rows) rows.insert(rows.end(), found.begin(), found.end());
  if (good && !rows.empty()) good = merge_long_rows<T, W, BESIDE>(from, rows, n_team, taker);
  return good;
}

template <class T> void require_occurrences(const Occurrences<T>& from) {
  require_offsets("segments", from.segments, from.n_unique, from.n_occurrences);
  require_below("order", from.order, from.n_occurrences, from.n_sources);
  require_vectors("source_start", from.source_start, from.n_sources, from.width, from.gradients_size);
  if (from.beside_start)
    require_vectors("beside.source_start", from.beside_start, from.n_sources, 1, from.gradients_size);
}

}  // namespace hpcrec

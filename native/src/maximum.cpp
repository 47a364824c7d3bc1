// Pooling by max: each bag by one thread, so that its winners are found in order.
#include "hpcrec/maximum.h"

#include <stdexcept>

#include "hpcrec/check.h"
#include "hpcrec/parallel.h"
#include "hpcrec/row.h"

namespace hpcrec {
namespace {

template <int W, bool WINNERS, class T, class E> void largest_range(const Largest<T, E>& c, Range mine) {
  if (mine.first == mine.last) return;
  const int64_t width = W ? W : c.width;
  const int64_t ahead = rows_ahead<E>(width), last_id = c.offsets[mine.last] - 1;
  const int64_t* __restrict index = c.index;
  for (int64_t v = mine.first; v < mine.last; ++v) {
    T* __restrict out = c.out + (c.out_start ? c.out_start[v] : v * width);
    int32_t* __restrict winner = WINNERS ? c.winners + v * width : nullptr;
    const int64_t first = c.offsets[v], end = c.offsets[v + 1];
    if constexpr (WINNERS) std::memset(winner, 0, sizeof(int32_t) * width);
    if (first == end) {
      std::memset(out, 0, sizeof(T) * width);
      continue;
    }
    const E* begin = c.rows + index[first] * width;
    for (int64_t d = 0; d < width; ++d) out[d] = widened(begin[d]);
    for (int64_t k = first; k < end; ++k) {
      prefetch_row<W>(c.rows + index[std::min(k + ahead, last_id)] * width, width);
      if (k == first) continue;
      const E* __restrict row = c.rows + index[k] * width;
      const int32_t place = static_cast<int32_t>(k - first);
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) {
        const T x = widened(row[d]), y = out[d];
        const bool wins = (x > y) | ((x != x) & (y == y));
        out[d] = wins ? x : y;
        if constexpr (WINNERS) winner[d] = wins ? place : winner[d];
      }
    }
  }
}

// Whether the winners of bags [mine) lie in their bags.
template <class T> bool all_in_bags(const LargestBackward<T>& c, Range mine) {
  int64_t outside = 0;
  for (int64_t v = mine.first; v < mine.last; ++v) {
    const uint64_t length = static_cast<uint64_t>(c.offsets[v + 1] - c.offsets[v]);
    if (length == 0) continue;
    for (int64_t d = 0; d < c.width; ++d)
      outside |=
          static_cast<int64_t>(static_cast<uint64_t>(static_cast<int64_t>(c.winners[v * c.width + d])) >= length);
  }
  return outside == 0;
}

template <class T> void spread_range(const LargestBackward<T>& c, Range mine) {
  const int64_t first = c.offsets[mine.first], last = c.offsets[mine.last];
  std::fill(c.out + first * c.width, c.out + last * c.width, T{0});
  for (int64_t v = mine.first; v < mine.last; ++v) {
    if (c.offsets[v] == c.offsets[v + 1]) continue;
    const T* gradient = c.gradients + (c.source_start ? c.source_start[v] : v * c.width);
    const int32_t* winner = c.winners + v * c.width;
    T* out = c.out + c.offsets[v] * c.width;
    for (int64_t d = 0; d < c.width; ++d) out[winner[d] * c.width + d] = gradient[d];
  }
}

}  // namespace

template <class T, class E> void pooled_max(const Largest<T, E>& c) {
  std::atomic<bool> good{c.offsets[0] == 0 && c.offsets[c.n_vectors] == c.n_ids};
  parallel_pieces(good ? team((c.n_ids + c.n_vectors) * c.width) : 1, [&](int piece, int pieces) {
    const Range mine = share_bags(c.offsets, c.n_vectors, piece, pieces);
    if (!good || !all_bags(c.offsets, mine.first, mine.last, c.n_ids) ||
        !all_vectors(c.out_start, mine.first, mine.last, c.width, c.out_size) ||
        !all_below(c.index + c.offsets[mine.first], c.offsets[mine.last] - c.offsets[mine.first], c.n_rows)) {
      good = false;
      return;
    }
    with_width<T>(c.width, [&](auto w) {
      if (c.winners) largest_range<decltype(w)::value, true>(c, mine);
      else largest_range<decltype(w)::value, false>(c, mine);
    });
  });
  if (good) return;
  require_offsets("offsets", c.offsets, c.n_vectors, c.n_ids);
  require_below("index", c.index, c.n_ids, c.n_rows);
  require_vectors("out_start", c.out_start, c.n_vectors, c.width, c.out_size);
  refuse_changed("pooled_max");
}

template <class T> void pooled_max_backward(const LargestBackward<T>& c) {
  std::atomic<bool> good{c.offsets[0] == 0 && c.offsets[c.n_vectors] == c.n_ids};
  std::atomic<bool> inside{true};
  parallel_pieces(good ? team((c.n_ids + c.n_vectors) * c.width) : 1, [&](int piece, int pieces) {
    const Range mine = share_bags(c.offsets, c.n_vectors, piece, pieces);
    if (!good || !all_bags(c.offsets, mine.first, mine.last, c.n_ids) ||
        !all_vectors(c.source_start, mine.first, mine.last, c.width, c.gradients_size)) {
      good = false;
    } else if (!all_in_bags(c, mine)) {
      inside = false;
    } else {
      spread_range(c, mine);
    }
  });
  if (good && inside) return;
  require_offsets("offsets", c.offsets, c.n_vectors, c.n_ids);
  require_vectors("source_start", c.source_start, c.n_vectors, c.width, c.gradients_size);
  if (!inside) throw std::invalid_argument("winners: a place is outside its bag");
  refuse_changed("pooled_max_backward");
}

template void pooled_max(const Largest<float>&);
template void pooled_max(const Largest<double>&);
template void pooled_max(const Largest<float, Bf16>&);
template void pooled_max(const Largest<float, Fp16>&);
template void pooled_max_backward(const LargestBackward<float>&);
template void pooled_max_backward(const LargestBackward<double>&);

}  // namespace hpcrec

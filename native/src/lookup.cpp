// Pooled gather and vector copy: bound by memory, so all that they do is ask for rows early enough.
#include "hpcrec/lookup.h"

#include "hpcrec/check.h"
#include "hpcrec/parallel.h"
#include "hpcrec/row.h"

namespace hpcrec {
namespace {

template <int W, bool BESIDE, class T, class E> void gather_range(const Gather<T, E>& c, Range mine) {
  if (mine.first == mine.last) return;
  const int64_t width = W ? W : c.width;
  const int64_t ahead = rows_ahead<E>(width), last_id = c.offsets[mine.last] - 1;
  const int64_t* __restrict index = c.index;
  for (int64_t k = c.offsets[mine.first]; k <= std::min(c.offsets[mine.first] + ahead - 1, last_id); ++k)
    prefetch_row<W>(c.rows + index[k] * width, width);
  for (int64_t v = mine.first; v < mine.last; ++v) {
    T* out = c.out + (c.out_start ? c.out_start[v] : v * width);
    Sum<T, W> sum(out, width);
    T beside = 0;
    const int64_t end = c.offsets[v + 1];
    for (int64_t k = c.offsets[v]; k < end; ++k) {
      const int64_t next = index[std::min(k + ahead, last_id)];
      prefetch_row<W>(c.rows + next * width, width);
      if constexpr (BESIDE) __builtin_prefetch(c.beside + next, 0, 3);
      const E* row = c.rows + index[k] * width;
      if (c.weights) sum.add(row, c.weights[k]);
      else sum.add(row);
      if constexpr (BESIDE) beside += c.weights ? c.weights[k] * c.beside[index[k]] : c.beside[index[k]];
    }
    if (c.scale) sum.store(out, c.scale[v]);
    else sum.store(out);
    if constexpr (BESIDE) c.out[c.beside_start[v]] = c.scale ? c.scale[v] * beside : beside;
  }
}

// Columns [column, column + width) of vectors [mine): the whole width, except where several threads accumulate.
template <class T, int W> void copy_range(const Copy<T>& c, Range mine, int64_t column, int64_t n_columns) {
  const int64_t width = W ? W : n_columns, ahead = rows_ahead<T>(width);
  for (int64_t v = mine.first; v < mine.last; ++v) {
    const int64_t next = std::min(v + ahead, mine.last - 1);
    if (c.source_start) prefetch_row<W>(c.source + c.source_start[next] + column, width);
    if (c.target_start) prefetch_row<W, true>(c.target + c.target_start[next] + column, width);
    const T* __restrict from = c.source + (c.source_start ? c.source_start[v] : v * c.width) + column;
    T* __restrict to = c.target + (c.target_start ? c.target_start[v] : v * c.width) + column;
    if (c.accumulate) {
      if (c.scale)
#pragma omp simd
        for (int64_t d = 0; d < width; ++d) to[d] += c.scale[v] * from[d];
      else
#pragma omp simd
        for (int64_t d = 0; d < width; ++d) to[d] += from[d];
    } else if (c.scale) {
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) to[d] = c.scale[v] * from[d];
    } else {
      std::memcpy(to, from, sizeof(T) * width);
    }
  }
}

}  // namespace

template <class T, class E> void pooled_gather(const Gather<T, E>& c) {
  const int64_t n_rows = c.beside ? std::min(c.n_rows, c.n_beside) : c.n_rows;
  std::atomic<bool> good{c.offsets[0] == 0 && c.offsets[c.n_vectors] == c.n_ids};
  parallel_pieces(good ? team((c.n_ids + c.n_vectors) * c.width) : 1, [&](int piece, int pieces) {
    const Range mine = share_bags(c.offsets, c.n_vectors, piece, pieces);
    if (!good || !all_bags(c.offsets, mine.first, mine.last, c.n_ids) ||
        !all_vectors(c.out_start, mine.first, mine.last, c.width, c.out_size) ||
        !all_below(c.index + c.offsets[mine.first], c.offsets[mine.last] - c.offsets[mine.first], n_rows) ||
        (c.beside && !all_vectors(c.beside_start, mine.first, mine.last, 1, c.out_size))) {
      good = false;
      return;
    }
    with_width<T>(c.width, [&](auto w) {
      if (c.beside) gather_range<decltype(w)::value, true>(c, mine);
      else gather_range<decltype(w)::value, false>(c, mine);
    });
  });
  if (good) return;
  require_offsets("offsets", c.offsets, c.n_vectors, c.n_ids);
  require_below("index", c.index, c.n_ids, n_rows);
  require_vectors("out_start", c.out_start, c.n_vectors, c.width, c.out_size);
  if (c.beside) require_vectors("beside.start", c.beside_start, c.n_vectors, 1, c.out_size);
  refuse_changed("pooled_gather");
}

template <class T> void copy_vectors(const Copy<T>& c) {
  const int n = team(c.n_vectors * c.width);
  std::atomic<bool> good{true};
  auto check = [&](Range mine) {
    if (!all_vectors(c.source_start, mine.first, mine.last, c.width, c.source_size) ||
        !all_vectors(c.target_start, mine.first, mine.last, c.width, c.target_size))
      good = false;
    return good.load();
  };
  if (!c.accumulate || !c.target_start || n == 1) {
    parallel_pieces(n, [&](int piece, int pieces) {
      const Range mine = share(c.n_vectors, piece, pieces);
      if (check(mine)) with_width<T>(c.width, [&](auto w) { copy_range<T, decltype(w)::value>(c, mine, 0, c.width); });
    });
  } else if (check({0, c.n_vectors})) {
    // Targets may repeat and must add up in the order of v: threads divide the columns, in whole cache lines.
    constexpr int64_t line = 64 / sizeof(T);
    const int64_t n_lines = (c.width + line - 1) / line;
    parallel(n, [&](int member, int members) {
      const Range lines = share(n_lines, member, members);
      const int64_t column = lines.first * line, end = std::min(lines.last * line, c.width);
      if (column < end) copy_range<T, 0>(c, {0, c.n_vectors}, column, end - column);
    });
  }
  if (good) return;
  require_vectors("source_start", c.source_start, c.n_vectors, c.width, c.source_size);
  require_vectors("target_start", c.target_start, c.n_vectors, c.width, c.target_size);
  refuse_changed("copy_vectors");
}

template void pooled_gather(const Gather<float>&);
template void pooled_gather(const Gather<double>&);
template void pooled_gather(const Gather<float, Bf16>&);
template void pooled_gather(const Gather<float, Fp16>&);
template void copy_vectors(const Copy<float>&);
template void copy_vectors(const Copy<double>&);

}  // namespace hpcrec

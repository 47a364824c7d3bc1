// Optimizers, one struct each: how rows move, given the gradient summed over the step's occurrences of each id.
//   prefetch<W>(n)                   asks for row n's state
//   apply<W>(ids, u, n, rows, g)     updates rows ids[0 .. n), n at most most_batch_rows, from g, the merged gradients
//                                    from the u-th on; W is the width, or 0: this->width. rows.row(i, at) is row
//                                    ids[i]: in the table, where it begins at `at`, or a copy of it
// Each operation rounds as the NumPy definition does: no fused multiply-add, sqrt and / correctly rounded.
#pragma once
#include <cmath>

#include "hpcrec/row.h"

namespace hpcrec {

// Sum of squares: 16 strided running sums, folded in halves.
template <int W, class T> inline T squared_norm(const T* g, int64_t width) {
  if constexpr (W == 1 || W == 2 || W == 4 || W == 8) {  // no sum has more than one square; those without add 0
    T lane[W];
#pragma GCC unroll 8
    for (int i = 0; i < W; ++i) lane[i] = g[i] * g[i];
#pragma GCC unroll 8
    for (int half = W / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    return lane[0];
  }
  constexpr int n_lanes = 16, n_part_lanes = 32 / sizeof(T), n_parts = n_lanes / n_part_lanes;
  typedef T Part __attribute__((vector_size(32)));
  Part sums[n_parts] = {};
  auto add = [&sums](const T* x) {
#pragma GCC unroll 4
    for (int i = 0; i < n_parts; ++i) {
      Part part;
      std::memcpy(&part, x + i * n_part_lanes, sizeof part);
      sums[i] += part * part;
    }
  };
  const int64_t n_columns = W ? W : width;
  int64_t d = 0;
  for (; d + n_lanes <= n_columns; d += n_lanes) add(g + d);
  if (d < n_columns) {
    T tail[n_lanes] = {};
    std::memcpy(tail, g + d, sizeof(T) * static_cast<size_t>(n_columns - d));
    add(tail);
  }
#pragma GCC unroll 4
  for (int half = n_parts / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  T lane[n_part_lanes];
  std::memcpy(lane, sums, sizeof lane);
#pragma GCC unroll 8
  for (int half = n_part_lanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

// Where the rows of a batch are.
template <class T> struct InTable {
  T* rows;  // [N, width]
  T* row(int64_t, int64_t at) const { return rows + at; }
};
template <class T> struct Copied {
  T* rows;  // [n, width]
  int64_t width;
  T* row(int64_t i, int64_t) const { return rows + i * width; }
};

// Calls f(at, row, g, columns) for each of n rows, `at` its place in the table: that of its state too.
template <int W, class T, class Rows, class F>
HPCREC_INLINE void for_rows(const int64_t* ids, int64_t n, int64_t width, const Rows& rows, const T* g, F&& f) {
  const int64_t n_columns = W ? W : width;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = ids[i] * n_columns;
    f(at, rows.row(i, at), g + i * n_columns, n_columns);
  }
}

template <class T> struct Sgd {
  T lr;
  int64_t width;

  template <int W> HPCREC_INLINE void prefetch(int64_t) const {}
  template <int W, class Rows>
  void apply(const int64_t* ids, int64_t, int64_t n, const Rows& rows, const T* merged) const {
    for_rows<W>(ids, n, width, rows, merged, [=](int64_t, T* __restrict row, const T* __restrict g, int64_t columns) {
#pragma omp simd
      for (int64_t d = 0; d < columns; ++d) row[d] -= lr * g[d];
    });
  }
};

template <class T> struct Adagrad {
  T lr, eps;
  T* accumulator;  // [N, width]
  int64_t width;

  template <int W> HPCREC_INLINE void prefetch(int64_t n) const {
    prefetch_row<W, true>(accumulator + n * width, width);
  }
  template <int W, class Rows>
  void apply(const int64_t* ids, int64_t, int64_t n, const Rows& rows, const T* merged) const {
    for_rows<W>(ids, n, width, rows, merged,
                [=](int64_t at, T* __restrict row, const T* __restrict g, int64_t columns) {
                  T* __restrict sum = accumulator + at;
#pragma omp simd
                  for (int64_t d = 0; d < columns; ++d) {
                    sum[d] += g[d] * g[d];
                    row[d] -= lr * g[d] / (std::sqrt(sum[d]) + eps);
                  }
                });
  }
};

// One accumulator a row: the mean over the whole table's columns of the squared gradient.
template <class T> struct RowwiseAdagrad {
  T lr, eps, total_width;
  T* accumulator;  // [N]
  const T* norm;   // [U] squared norms over the columns of all shards, or null: this row's own
  int64_t width;

  template <int W> HPCREC_INLINE void prefetch(int64_t n) const { __builtin_prefetch(accumulator + n, 1, 3); }
  // Roots and quotients are taken of many rows at a time: one after the other they take longer than the rows.
  template <int W, class Rows>
  void apply(const int64_t* ids, int64_t u, int64_t n, const Rows& rows, const T* merged) const {
    const int64_t n_columns = W ? W : width;
    T sum[most_batch_rows], rate[most_batch_rows];
    for (int64_t i = 0; i < n; ++i) sum[i] = norm ? norm[u + i] : squared_norm<W>(merged + i * n_columns, n_columns);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sum[i] /= total_width;
    for (int64_t i = 0; i < n; ++i) accumulator[ids[i]] = sum[i] += accumulator[ids[i]];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) rate[i] = lr / (std::sqrt(sum[i]) + eps);
    for (int64_t i = 0; i < n; ++i) {
      T* __restrict row = rows.row(i, ids[i] * n_columns);
      const T* __restrict g = merged + i * n_columns;
#pragma omp simd
      for (int64_t d = 0; d < n_columns; ++d) row[d] -= rate[i] * g[d];
    }
  }
};

// A gradient that is the sum of several steps': what divides it is the mean over these steps of the roots that they
// would have met, each having added its part of the squares. The mean of 1 / sqrt(a + i q / n) over i = 1 .. n, as the
// integral between the middles of its steps gives it: within 2.5 % of it for every n > 1.
template <class T> inline T mean_rate(T lr, T eps, T accumulator, T squares, T twice_n) {
  const T half = squares / twice_n;
  return (lr + lr) / (std::sqrt(accumulator + half) + std::sqrt(accumulator + squares + half) + (eps + eps));
}

template <class T> struct AdagradOfSums {
  T lr, eps;
  T* accumulator;        // [N, width]
  const int64_t* ticks;  // [U]
  const T* squares;      // [U, width]
  int64_t width;

  template <int W> HPCREC_INLINE void prefetch(int64_t n) const {
    prefetch_row<W, true>(accumulator + n * width, width);
  }
  template <int W, class Rows>
  void apply(const int64_t* ids, int64_t u, int64_t n, const Rows& rows, const T* merged) const {
    const int64_t n_columns = W ? W : width;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = ids[i] * n_columns;
      const T twice_n = static_cast<T>(2 * ticks[u + i]);
      T* __restrict row = rows.row(i, at);
      T* __restrict sum = accumulator + at;
      const T* __restrict g = merged + i * n_columns;
      const T* __restrict q = squares + (u + i) * n_columns;
#pragma omp simd
      for (int64_t d = 0; d < n_columns; ++d) {
        row[d] -= mean_rate(lr, eps, sum[d], q[d], twice_n) * g[d];
        sum[d] += q[d];
      }
    }
  }
};

template <class T> struct RowwiseAdagradOfSums {
  T lr, eps;
  T* accumulator;        // [N]
  const int64_t* ticks;  // [U]
  const T* squares;      // [U]
  int64_t width;

  template <int W> HPCREC_INLINE void prefetch(int64_t n) const { __builtin_prefetch(accumulator + n, 1, 3); }
  template <int W, class Rows>
  void apply(const int64_t* ids, int64_t u, int64_t n, const Rows& rows, const T* merged) const {
    const int64_t n_columns = W ? W : width;
    for (int64_t i = 0; i < n; ++i) {
      T* __restrict row = rows.row(i, ids[i] * n_columns);
      const T* __restrict g = merged + i * n_columns;
      const T q = squares[u + i], before = accumulator[ids[i]];
      const T rate = mean_rate(lr, eps, before, q, static_cast<T>(2 * ticks[u + i]));
      accumulator[ids[i]] = before + q;
#pragma omp simd
      for (int64_t d = 0; d < n_columns; ++d) row[d] -= rate * g[d];
    }
  }
};

// torch.optim.SparseAdam, operation by operation.
template <class T> struct Adam {
  T step_size, eps, rest1, rest2;  // rest: 1 - beta
  T* exp_avg;                      // [N, width]
  T* exp_avg_sq;                   // [N, width]
  int64_t width;

  template <int W> HPCREC_INLINE void prefetch(int64_t n) const {
    prefetch_row<W, true>(exp_avg + n * width, width);
    prefetch_row<W, true>(exp_avg_sq + n * width, width);
  }
  template <int W, class Rows>
  void apply(const int64_t* ids, int64_t, int64_t n, const Rows& rows, const T* merged) const {
    for_rows<W>(ids, n, width, rows, merged,
                [=](int64_t at, T* __restrict row, const T* __restrict g, int64_t columns) {
                  T* __restrict m = exp_avg + at;
                  T* __restrict v = exp_avg_sq + at;
#pragma omp simd
                  for (int64_t d = 0; d < columns; ++d) {
                    m[d] += (g[d] - m[d]) * rest1;
                    v[d] += (g[d] * g[d] - v[d]) * rest2;
                    row[d] -= step_size * (m[d] / (std::sqrt(v[d]) + eps));
                  }
                });
  }
};

}  // namespace hpcrec

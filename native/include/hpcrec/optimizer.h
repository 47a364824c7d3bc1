// Optimizers, one struct each: how one row moves, given the gradient summed over the step's occurrences of its id.
//   prefetch<W>(n)               asks for row n's state
//   apply<W>(n, u, row, g)       updates row n from g, the u-th merged gradient; W is the width, or 0: this->width
// Each operation rounds as the NumPy definition does: no fused multiply-add, sqrt and / correctly rounded.
#pragma once
#include <cmath>

#include "hpcrec/row.h"

namespace hpcrec {

// Sum of squares: 16 strided running sums, folded in halves.
template <int W, class T> inline T squared_norm(const T* g, int64_t width) {
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

template <class T> struct Sgd {
  T lr;
  int64_t width;

  template <int W> HPCREC_INLINE void prefetch(int64_t) const {}
  template <int W> void apply(int64_t, int64_t, T* __restrict row, const T* __restrict g) const {
    const int64_t n_columns = W ? W : width;
#pragma omp simd
    for (int64_t d = 0; d < n_columns; ++d) row[d] -= lr * g[d];
  }
};

template <class T> struct Adagrad {
  T lr, eps;
  T* accumulator;  // [N, width]
  int64_t width;

  template <int W> HPCREC_INLINE void prefetch(int64_t n) const {
    prefetch_row<W, true>(accumulator + n * width, width);
  }
  template <int W> void apply(int64_t n, int64_t, T* __restrict row, const T* __restrict g) const {
    const int64_t n_columns = W ? W : width;
    T* __restrict sum = accumulator + n * n_columns;
#pragma omp simd
    for (int64_t d = 0; d < n_columns; ++d) {
      sum[d] += g[d] * g[d];
      row[d] -= lr * g[d] / (std::sqrt(sum[d]) + eps);
    }
  }
};

// One accumulator a row: the mean over the whole table's columns of the squared gradient.
template <class T> struct RowwiseAdagrad {
  T lr, eps, total_width;
  T* accumulator;  // [N]
  const T* norm;   // [U] squared norms over the columns of all shards, or null: this row's own
  int64_t width;

  template <int W> HPCREC_INLINE void prefetch(int64_t n) const { __builtin_prefetch(accumulator + n, 1, 3); }
  template <int W> void apply(int64_t n, int64_t u, T* __restrict row, const T* __restrict g) const {
    const int64_t n_columns = W ? W : width;
    const T square = norm ? norm[u] : squared_norm<W>(g, n_columns);
    accumulator[n] += square / total_width;
    const T rate = lr / (std::sqrt(accumulator[n]) + eps);
#pragma omp simd
    for (int64_t d = 0; d < n_columns; ++d) row[d] -= rate * g[d];
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
  template <int W> void apply(int64_t n, int64_t, T* __restrict row, const T* __restrict g) const {
    const int64_t n_columns = W ? W : width;
    T* __restrict m = exp_avg + n * n_columns;
    T* __restrict v = exp_avg_sq + n * n_columns;
#pragma omp simd
    for (int64_t d = 0; d < n_columns; ++d) {
      m[d] += (g[d] - m[d]) * rest1;
      v[d] += (g[d] * g[d] - v[d]) * rest2;
      row[d] -= step_size * (m[d] / (std::sqrt(v[d]) + eps));
    }
  }
};

}  // namespace hpcrec

// Optimizers, one struct each: how one row moves, given the gradient summed over the step's occurrences of its id.
//   prefetch(n)                  asks for row n's state
//   apply<W>(n, u, row, g)       updates row n from g, the u-th merged gradient; W is the width, or 0: this->width
// Each operation rounds as the NumPy definition does: no fused multiply-add, sqrt and / correctly rounded.
#pragma once
#include <cmath>

#include "hpcrec/row.h"

namespace hpcrec {

// Adds the upper half of N numbers to the lower, until one is left.
template <int N, class T> inline T fold(const T* x) {
  if constexpr (N == 1) {
    return x[0];
  } else {
    typedef T Half __attribute__((vector_size(N / 2 * sizeof(T))));
    Half low, high;
    std::memcpy(&low, x, sizeof low);
    std::memcpy(&high, x + N / 2, sizeof high);
    low += high;
    T rest[N / 2];
    std::memcpy(rest, &low, sizeof rest);
    return fold<N / 2>(rest);
  }
}

// Sum of squares: 16 strided running sums, folded in halves.
template <class T> inline T squared_norm(const T* g, int64_t width) {
  constexpr int n_lanes = 16;
  typedef T Lanes __attribute__((vector_size(n_lanes * sizeof(T))));
  Lanes sums{}, x;
  int64_t d = 0;
  for (; d + n_lanes <= width; d += n_lanes) {
    std::memcpy(&x, g + d, sizeof x);
    sums += x * x;
  }
  if (d < width) {
    T tail[n_lanes] = {};
    std::memcpy(tail, g + d, sizeof(T) * static_cast<size_t>(width - d));
    std::memcpy(&x, tail, sizeof x);
    sums += x * x;
  }
  T lane[n_lanes];
  std::memcpy(lane, &sums, sizeof lane);
  return fold<n_lanes>(lane);
}

template <class T> struct Sgd {
  T lr;
  int64_t width;

  void prefetch(int64_t) const {}
  template <int W> void apply(int64_t, int64_t, T* __restrict row, const T* __restrict g) const {
    const int64_t n_columns = W ? W : width;
    for (int64_t d = 0; d < n_columns; ++d) row[d] -= lr * g[d];
  }
};

template <class T> struct Adagrad {
  T lr, eps;
  T* accumulator;  // [N, width]
  int64_t width;

  void prefetch(int64_t n) const { prefetch_row<true>(accumulator + n * width, width); }
  template <int W> void apply(int64_t n, int64_t, T* __restrict row, const T* __restrict g) const {
    const int64_t n_columns = W ? W : width;
    T* __restrict sum = accumulator + n * n_columns;
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

  void prefetch(int64_t n) const { __builtin_prefetch(accumulator + n, 1, 3); }
  template <int W> void apply(int64_t n, int64_t u, T* __restrict row, const T* __restrict g) const {
    const int64_t n_columns = W ? W : width;
    const T square = norm ? norm[u] : squared_norm(g, n_columns);
    accumulator[n] += square / total_width;
    const T rate = lr / (std::sqrt(accumulator[n]) + eps);
    for (int64_t d = 0; d < n_columns; ++d) row[d] -= rate * g[d];
  }
};

// torch.optim.SparseAdam, operation by operation.
template <class T> struct Adam {
  T step_size, eps, rest1, rest2;  // rest: 1 - beta
  T* exp_avg;                      // [N, width]
  T* exp_avg_sq;                   // [N, width]
  int64_t width;

  void prefetch(int64_t n) const {
    prefetch_row<true>(exp_avg + n * width, width);
    prefetch_row<true>(exp_avg_sq + n * width, width);
  }
  template <int W> void apply(int64_t n, int64_t, T* __restrict row, const T* __restrict g) const {
    const int64_t n_columns = W ? W : width;
    T* __restrict m = exp_avg + n * n_columns;
    T* __restrict v = exp_avg_sq + n * n_columns;
    for (int64_t d = 0; d < n_columns; ++d) {
      m[d] += (g[d] - m[d]) * rest1;
      v[d] += (g[d] * g[d] - v[d]) * rest2;
      row[d] -= step_size * (m[d] / (std::sqrt(v[d]) + eps));
    }
  }
};

}  // namespace hpcrec

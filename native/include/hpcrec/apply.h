// What the updates share: merged gradients given to their rows by an optimizer.
#pragma once
#include "hpcrec/half_batch.h"
#include "hpcrec/merge.h"
#include "hpcrec/optimizer.h"

namespace hpcrec {

// Bounds n rows that have moved, where there is a bound; what is not a number stays so.
template <int W, class T, class Rows>
HPCREC_INLINE void bound_rows(const int64_t* ids, int64_t n, int64_t width, const Rows& rows, T bound) {
  if (std::isinf(bound)) return;
  const int64_t columns = W ? W : width;
  for (int64_t i = 0; i < n; ++i) {
    T* row = rows.row(i, ids[i] * columns);
#pragma omp simd
    for (int64_t d = 0; d < columns; ++d) row[d] = row[d] > bound ? bound : row[d] < -bound ? -bound : row[d];
  }
}

// Gives merged gradients to their rows.
template <class T, class Optimizer> struct Apply {
  const Target<T>& target;
  const Optimizer& optimizer;
  T bound;

  bool accepts(Range mine) const {
    return all_below(target.unique + mine.first, mine.last - mine.first, target.n_rows);
  }
  template <int W> HPCREC_INLINE void prefetch(int64_t u) const {
    const int64_t n = target.unique[u];
    prefetch_row<W, true>(target.rows + n * (W ? W : target.width), target.width);
    optimizer.template prefetch<W>(n);
  }
  T* memory(int64_t, T* spare) const { return spare; }
  template <int W> void take(int64_t u, int64_t n, const T* g, const T* = nullptr) const {
    const InTable<T> rows{target.rows};
    optimizer.template apply<W>(target.unique + u, u, n, rows, g);
    bound_rows<W>(target.unique + u, n, target.width, rows, bound);
  }
};

// Calls f with the optimizer that the rule names.
template <class T, class F> void with_optimizer(const Learning<T>& how, int64_t width, F&& f) {
  switch (how.rule) {
    case Rule::sgd:
      return f(Sgd<T>{how.rate, width});
    case Rule::adagrad:
      return f(Adagrad<T>{how.rate, how.eps, how.state1, width});
    case Rule::rowwise_adagrad:
      return f(RowwiseAdagrad<T>{how.rate, how.eps, how.total_width, how.state1, how.norm, width});
    case Rule::adam:
      return f(Adam<T>{how.rate, how.eps, how.rest1, how.rest2, how.state1, how.state2, width});
  }
}

// Gives merged gradients to rows of halves: copies of float32 move, a batch at a time, and are rounded. The optimizer
// is chosen batch by batch, which takes no time, and compiles no merge for each.
struct ApplyHalves {
  const Target<float, HalfRows>& target;
  const Learning<float>& how;

  bool accepts(Range mine) const {
    return all_below(target.unique + mine.first, mine.last - mine.first, target.n_rows);
  }
  template <int W> HPCREC_INLINE void prefetch(int64_t u) const {
    const int64_t n = target.unique[u];
    prefetch_row<W, true>(target.rows.bits + n * (W ? W : target.width), target.width);
    with_optimizer(how, target.width, [n](const auto& optimizer) { optimizer.template prefetch<W>(n); });
  }
  float* memory(int64_t, float* spare) const { return spare; }
  template <int W> void take(int64_t u, int64_t n, const float* g, const float* = nullptr) const {
    const int64_t width = W ? W : target.width;
    const int64_t* ids = target.unique + u;
    Spare<float, W> spare(width);
    read_rows<W>(target.rows, ids, n, width, spare.rows);
    with_optimizer(how, width, [&](const auto& optimizer) {
      optimizer.template apply<W>(ids, u, n, Copied<float>{spare.rows, width}, g);
    });
    bound_rows<W>(ids, n, width, Copied<float>{spare.rows, width}, how.bound);
    write_rows<W>(target.rows, ids, n, width, spare.rows);
  }
};

}  // namespace hpcrec

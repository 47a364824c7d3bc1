// What the updates share: merged gradients given to their rows by an optimizer.
#pragma once
#include "hpcrec/half_batch.h"
#include "hpcrec/merge.h"
#include "hpcrec/optimizer.h"

namespace hpcrec {

// Gives merged gradients to their rows.
template <class T, class Optimizer> struct Apply {
  const Target<T>& target;
  const Optimizer& optimizer;

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
    optimizer.template apply<W>(target.unique + u, u, n, InTable<T>{target.rows}, g);
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
    write_rows<W>(target.rows, ids, n, width, spare.rows);
  }
};

}  // namespace hpcrec

// What the updates share: merged gradients given to their rows by an optimizer.
#pragma once
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
    optimizer.template apply<W>(target.unique + u, u, n, target.rows, g);
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

}  // namespace hpcrec

// Optimizer updates of touched rows: from merged gradients, or fused with the merge.
#include "hpcrec/merge.h"
#include "hpcrec/optimizer.h"

namespace hpcrec {
namespace {

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

// The same rows of two tables.
template <class T, class Optimizer> struct ApplyBoth {
  const Apply<T, Optimizer>&first, &beside;

  bool accepts(Range mine) const { return first.accepts(mine) && beside.accepts(mine); }
  template <int W> HPCREC_INLINE void prefetch(int64_t u) const {
    first.template prefetch<W>(u);
    beside.template prefetch<1>(u);
  }
  T* memory(int64_t, T* spare) const { return spare; }
  template <int W> void take(int64_t u, int64_t n, const T* g, const T* narrow) const {
    first.template take<W>(u, n, g);
    beside.template take<1>(u, n, narrow);
  }
};

template <class T, int W, class Taker> bool take_all(const T* merged, int64_t n, int64_t width, const Taker& taker) {
  std::atomic<bool> good{true};
  parallel_pieces(team(n * width), [&](int piece, int pieces) {
    const Range mine = share(n, piece, pieces);
    if (!taker.accepts(mine)) {
      good = false;
      return;
    }
    const int64_t most = batch_rows<T>(width);
    for (int64_t u = mine.first; u < std::min(mine.first + most, mine.last); ++u) taker.template prefetch<W>(u);
    for (int64_t u = mine.first; u < mine.last; u += most) {
      const int64_t n = std::min(most, mine.last - u);
      for (int64_t next = u + most; next < std::min(u + 2 * most, mine.last); ++next) taker.template prefetch<W>(next);
      taker.template take<W>(u, n, merged + u * (W ? W : width));
    }
  });
  return good;
}

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

}  // namespace

template <class T> void update(const Target<T>& target, const T* merged, const Learning<T>& how) {
  bool good = false;
  with_optimizer(how, target.width, [&](const auto& optimizer) {
    const Apply<T, std::decay_t<decltype(optimizer)>> taker{target, optimizer};
    with_width(target.width,
               [&](auto w) { good = take_all<T, decltype(w)::value>(merged, target.n_unique, target.width, taker); });
  });
  if (good) return;
  require_below("unique", target.unique, target.n_unique, target.n_rows);
  refuse_changed("update");
}

template <class T> void merge_update(const Target<T>& target, const Occurrences<T>& from, const Learning<T>& how) {
  bool good = false;
  with_optimizer(how, target.width, [&](const auto& optimizer) {
    const Apply<T, std::decay_t<decltype(optimizer)>> taker{target, optimizer};
    with_width(target.width, [&](auto w) { good = merge_into<T, decltype(w)::value, false>(from, taker); });
  });
  if (good) return;
  require_below("unique", target.unique, target.n_unique, target.n_rows);
  require_occurrences(from);
  refuse_changed("merge_update");
}

template <class T>
void merge_update(const Target<T>& target, const Occurrences<T>& from, const Learning<T>& how, const Target<T>& beside,
                  const Learning<T>& beside_how) {
  bool good = false;
  with_optimizer(how, target.width, [&](const auto& optimizer) {
    using Optimizer = std::decay_t<decltype(optimizer)>;
    with_optimizer(beside_how, 1, [&](const auto& beside_optimizer) {
      if constexpr (std::is_same_v<std::decay_t<decltype(beside_optimizer)>, Optimizer>) {
        const Apply<T, Optimizer> first{target, optimizer}, narrow{beside, beside_optimizer};
        const ApplyBoth<T, Optimizer> taker{first, narrow};
        with_width(target.width, [&](auto w) { good = merge_into<T, decltype(w)::value, true>(from, taker); });
      }
    });
  });
  if (good) return;
  require_below("unique", target.unique, target.n_unique, std::min(target.n_rows, beside.n_rows));
  require_occurrences(from);
  refuse_changed("merge_update");
}

template void update(const Target<float>&, const float*, const Learning<float>&);
template void update(const Target<double>&, const double*, const Learning<double>&);
template void merge_update(const Target<float>&, const Occurrences<float>&, const Learning<float>&);
template void merge_update(const Target<double>&, const Occurrences<double>&, const Learning<double>&);
template void merge_update(const Target<float>&, const Occurrences<float>&, const Learning<float>&,
                           const Target<float>&, const Learning<float>&);
template void merge_update(const Target<double>&, const Occurrences<double>&, const Learning<double>&,
                           const Target<double>&, const Learning<double>&);

}  // namespace hpcrec

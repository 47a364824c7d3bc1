// Optimizer updates of touched rows from merged gradients.
#include "hpcrec/apply.h"

namespace hpcrec {
namespace {

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
      const int64_t n_rows = std::min(most, mine.last - u);
      for (int64_t next = u + most; next < std::min(u + 2 * most, mine.last); ++next) taker.template prefetch<W>(next);
      taker.template take<W>(u, n_rows, merged + u * (W ? W : width));
    }
  });
  return good;
}

// Calls f with the optimizer of sums that the rule names.
template <class T, class F> void with_sums(const Learning<T>& how, const Sums<T>& of, int64_t width, F&& f) {
  if (how.rule == Rule::adagrad) f(AdagradOfSums<T>{how.rate, how.eps, how.state1, of.ticks, of.squares, width});
  if (how.rule == Rule::rowwise_adagrad)
    f(RowwiseAdagradOfSums<T>{how.rate, how.eps, how.state1, of.ticks, of.squares, width});
}

struct ApplySumsToHalves {
  const Target<float, HalfRows>& target;
  const Learning<float>& how;
  const Sums<float>& of;

  bool accepts(Range mine) const {
    return all_below(target.unique + mine.first, mine.last - mine.first, target.n_rows);
  }
  template <int W> HPCREC_INLINE void prefetch(int64_t u) const {
    prefetch_row<W, true>(target.rows.bits + target.unique[u] * (W ? W : target.width), target.width);
  }
  template <int W> void take(int64_t u, int64_t n, const float* g) const {
    const int64_t width = W ? W : target.width;
    const int64_t* ids = target.unique + u;
    Spare<float, W> spare(width);
    read_rows<W>(target.rows, ids, n, width, spare.rows);
    with_sums(how, of, width, [&](const auto& optimizer) {
      optimizer.template apply<W>(ids, u, n, Copied<float>{spare.rows, width}, g);
    });
    bound_rows<W>(ids, n, width, Copied<float>{spare.rows, width}, how.bound);
    write_rows<W>(target.rows, ids, n, width, spare.rows);
  }
};

}  // namespace

template <class T>
void update_sums(const Target<T>& target, const T* merged, const Learning<T>& how, const Sums<T>& of) {
  bool good = false;
  with_sums(how, of, target.width, [&](const auto& optimizer) {
    const Apply<T, std::decay_t<decltype(optimizer)>> taker{target, optimizer, how.bound};
    with_width<T>(target.width, [&](auto w) {
      good = take_all<T, decltype(w)::value>(merged, target.n_unique, target.width, taker);
    });
  });
  if (good) return;
  require_below("unique", target.unique, target.n_unique, target.n_rows);
  refuse_changed("update_sums");
}

void update_sums(const Target<float, HalfRows>& target, const float* merged, const Learning<float>& how,
                 const Sums<float>& of) {
  bool good = false;
  with_width<float>(target.width, [&](auto w) {
    good =
        take_all<float, decltype(w)::value>(merged, target.n_unique, target.width, ApplySumsToHalves{target, how, of});
  });
  if (good) return;
  require_below("unique", target.unique, target.n_unique, target.n_rows);
  refuse_changed("update_sums");
}

template <class T> void update(const Target<T>& target, const T* merged, const Learning<T>& how) {
  bool good = false;
  with_optimizer(how, target.width, [&](const auto& optimizer) {
    const Apply<T, std::decay_t<decltype(optimizer)>> taker{target, optimizer, how.bound};
    with_width<T>(target.width, [&](auto w) {
      good = take_all<T, decltype(w)::value>(merged, target.n_unique, target.width, taker);
    });
  });
  if (good) return;
  require_below("unique", target.unique, target.n_unique, target.n_rows);
  refuse_changed("update");
}

void update(const Target<float, HalfRows>& target, const float* merged, const Learning<float>& how) {
  bool good = false;
  with_width<float>(target.width, [&](auto w) {
    good = take_all<float, decltype(w)::value>(merged, target.n_unique, target.width, ApplyHalves{target, how});
  });
  if (good) return;
  require_below("unique", target.unique, target.n_unique, target.n_rows);
  refuse_changed("update");
}

template void update(const Target<float>&, const float*, const Learning<float>&);
template void update(const Target<double>&, const double*, const Learning<double>&);
template void update_sums(const Target<float>&, const float*, const Learning<float>&, const Sums<float>&);
template void update_sums(const Target<double>&, const double*, const Learning<double>&, const Sums<double>&);

}  // namespace hpcrec

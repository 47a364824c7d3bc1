// The same for two tables in one pass. A file of its own, so that it is compiled beside the others: they take longest.
#include "hpcrec/apply.h"

namespace hpcrec {
namespace {

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

}  // namespace

template <class T>
void merge_update(const Target<T>& target, const Occurrences<T>& from, const Learning<T>& how, const Target<T>& beside,
                  const Learning<T>& beside_how) {
  bool good = false;
  with_optimizer(how, target.width, [&](const auto& optimizer) {
    using Optimizer = std::decay_t<decltype(optimizer)>;
    with_optimizer(beside_how, 1, [&](const auto& beside_optimizer) {
      if constexpr (std::is_same_v<std::decay_t<decltype(beside_optimizer)>, Optimizer>) {
        const Apply<T, Optimizer> first{target, optimizer, how.bound},
            narrow{beside, beside_optimizer, beside_how.bound};
        const ApplyBoth<T, Optimizer> taker{first, narrow};
        with_width<T>(target.width, [&](auto w) { good = merge_into<T, decltype(w)::value, true>(from, taker); });
      }
    });
  });
  if (good) return;
  require_below("unique", target.unique, target.n_unique, std::min(target.n_rows, beside.n_rows));
  require_occurrences(from);
  refuse_changed("merge_update");
}

template void merge_update(const Target<float>&, const Occurrences<float>&, const Learning<float>&,
                           const Target<float>&, const Learning<float>&);
template void merge_update(const Target<double>&, const Occurrences<double>&, const Learning<double>&,
                           const Target<double>&, const Learning<double>&);

}  // namespace hpcrec

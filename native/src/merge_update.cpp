// Optimizer updates of touched rows, fused with the merge of their gradients.
#include "hpcrec/apply.h"

namespace hpcrec {

template <class T> void merge_update(const Target<T>& target, const Occurrences<T>& from, const Learning<T>& how) {
  bool good = false;
  with_optimizer(how, target.width, [&](const auto& optimizer) {
    const Apply<T, std::decay_t<decltype(optimizer)>> taker{target, optimizer, how.bound};
    with_width<T>(target.width, [&](auto w) { good = merge_into<T, decltype(w)::value, false>(from, taker); });
  });
  if (good) return;
  require_below("unique", target.unique, target.n_unique, target.n_rows);
  require_occurrences(from);
  refuse_changed("merge_update");
}

template void merge_update(const Target<float>&, const Occurrences<float>&, const Learning<float>&);
template void merge_update(const Target<double>&, const Occurrences<double>&, const Learning<double>&);

}  // namespace hpcrec

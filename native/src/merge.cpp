// Merge, written down; squared norms.
#include "hpcrec/merge.h"

#include "hpcrec/optimizer.h"

namespace hpcrec {
namespace {
template <class T> struct Write {
  T* merged;
  int64_t width;

  bool accepts(Range) const { return true; }
  template <int W> HPCREC_INLINE void prefetch(int64_t) const {}
  T* memory(int64_t u, T*) const { return merged + u * width; }
  template <int W> void take(int64_t, int64_t, const T*, const T*) const {}
};
}  // namespace

template <class T> void merge(const Occurrences<T>& from, T* merged) {
  bool good = false;
  with_width<T>(from.width,
                [&](auto w) { good = merge_into<T, decltype(w)::value, false>(from, Write<T>{merged, from.width}); });
  if (good) return;
  require_occurrences(from);
  refuse_changed("merge");
}

template <class T> void squared_norms(const T* merged, int64_t n, int64_t width, T* out) {
  parallel_pieces(team(n * width), [&](int member, int members) {
    const Range mine = share(n, member, members);
    for (int64_t u = mine.first; u < mine.last; ++u) out[u] = squared_norm<0>(merged + u * width, width);
  });
}

template void merge(const Occurrences<float>&, float*);
template void merge(const Occurrences<double>&, double*);
template void squared_norms(const float*, int64_t, int64_t, float*);
template void squared_norms(const double*, int64_t, int64_t, double*);

}  // namespace hpcrec

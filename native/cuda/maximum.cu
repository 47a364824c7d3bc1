// Pooling by max on the device, and its gradient: a group of lanes takes each bag, so that its winners are found in
// order.
#include "maximum.h"

#include "bags.h"

namespace hpcrec::cuda {
namespace {

// The largest of each column, the first of equals; NaN exceeds all.
template <class T, int N> class Exceeding {
  int32_t* winners_;  // [n_vectors, width_] or null
  int64_t width_;
  Pack<T, N> largest_;
  Pack<int32_t, N> winner_;
  int32_t place_;

 public:
  template <class E> explicit Exceeding(const Largest<T, E>& c) : winners_(c.winners), width_(c.width) {}
  __device__ void begin() {
    largest_ = zeros<T, N>();
    winner_ = zeros<int32_t, N>();
    place_ = 0;
  }
  __device__ T weight(int64_t) const { return T{1}; }
  template <class E> __device__ void take(const Pack<E, N>& row, T) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const T x = widened(row.x[i]), y = largest_.x[i];
      const bool wins = place_ == 0 || x > y || (x != x && y == y);
      largest_.x[i] = wins ? x : y;
      winner_.x[i] = wins ? place_ : winner_.x[i];
    }
    ++place_;
  }
  __device__ void write(T* to, int64_t v, int64_t column) const {
    store_packs<T, N>(to, largest_);
    if (winners_) store_packs<int32_t, N>(winners_ + v * width_ + column, winner_);
  }
};

// Each id of a bag gets the columns that it won, and zeros.
template <class T, int N>
__global__ void __launch_bounds__(block_threads, 1) spread_bags(LargestBackward<T> c, Layout layout, unsigned* faults) {
  const Member me(layout);
  const int64_t v = me.group, column = (static_cast<int64_t>(blockIdx.y) * layout.lanes + me.lane) * N;
  if (v == 0 && (c.offsets[0] != 0 || c.offsets[c.n_vectors] != c.n_ids)) note(faults, bad_offsets);
  if (v >= c.n_vectors || column >= c.width) return;
  const int64_t first = c.offsets[v], last = c.offsets[v + 1];
  const int64_t start = c.source_start ? c.source_start[v] : v * c.width;
  if (first < 0 || first > last || last > c.n_ids) note(faults, bad_offsets);
  else if (!fits(start, c.width, c.gradients_size)) note(faults, bad_start);
  else if (first < last) {
    const Pack<int32_t, N> winner = load_anywhere<int32_t, N>(c.winners + v * c.width + column);
    const Pack<T, N> gradient = load_anywhere<T, N>(c.gradients + start + column);
    bool inside = true;
#pragma unroll
    for (int i = 0; i < N; ++i) inside = inside && below(winner.x[i], last - first);
    if (!inside) note(faults, bad_winner);
    for (int64_t k = first; k < last; ++k) {
      Pack<T, N> own;
#pragma unroll
      for (int i = 0; i < N; ++i) own.x[i] = winner.x[i] == k - first ? gradient.x[i] : T{0};
      store_anywhere<T, N>(c.out + k * c.width + column, own);
    }
  }
}

template <class T, int N> void spread_with(const LargestBackward<T>& c, const Queue& queue) {
  const Layout layout = layout_of(c.width, N);
  const int64_t groups = layout.groups(block_threads);
  launch("pooled_max_backward", spread_bags<T, N>, c.n_vectors / groups + 1, tiles_of(layout, N), block_threads,
         queue.stream, c, layout, queue.faults);
}

}  // namespace

template <class T, class E> void pooled_max(const Largest<T, E>& c, const Queue& queue) {
  with_pack<T>(c.rows, c.width, [&](auto n) {
    constexpr int N = decltype(n)::value;
    pool_bags<N>("pooled_max", c, Exceeding<T, N>(c), queue);
  });
}

template <class T> void pooled_max_backward(const LargestBackward<T>& c, const Queue& queue) {
  if (c.width % most_packed<T> == 0) spread_with<T, most_packed<T>>(c, queue);
  else spread_with<T, 1>(c, queue);
}

template void pooled_max(const Largest<float>&, const Queue&);
template void pooled_max(const Largest<double>&, const Queue&);
template void pooled_max(const Largest<float, Bf16>&, const Queue&);
template void pooled_max(const Largest<float, Fp16>&, const Queue&);
template void pooled_max_backward(const LargestBackward<float>&, const Queue&);
template void pooled_max_backward(const LargestBackward<double>&, const Queue&);

}  // namespace hpcrec::cuda

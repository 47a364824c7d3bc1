// Pooled gather and vector copy on the device: bound by memory, so all that they do is ask for rows early enough.
#include "lookup.h"

#include "accumulate.h"
#include "bags.h"
#include "lanes.h"

namespace hpcrec::cuda {
namespace {

// Sums of weighted rows, scaled.
template <class T, int N> class Adding {
  const T* weights_;
  const T* scale_;
  Pack<T, N> sum_;

 public:
  template <class E> explicit Adding(const Gather<T, E>& c) : weights_(c.weights), scale_(c.scale) {}
  __device__ void begin() { sum_ = zeros<T, N>(); }
  __device__ T weight(int64_t k) const { return weights_ ? weights_[k] : T{1}; }
  template <class E> __device__ void take(const Pack<E, N>& row, T its_weight) {
    if (weights_) add(sum_, row, its_weight);
    else add(sum_, row);
  }
  __device__ void write(T* to, int64_t v, int64_t) const {
    store_packs<T, N>(to, scale_ ? scaled(sum_, scale_[v]) : sum_);
  }
};

template <class T, int N>
__global__ void __launch_bounds__(block_threads, 1) copy_each(Copy<T> c, Layout layout, unsigned* faults) {
  const Member me(layout);
  const int64_t v = me.group, column = (static_cast<int64_t>(blockIdx.y) * layout.lanes + me.lane) * N;
  if (v >= c.n_vectors || column >= c.width) return;
  const int64_t from = c.source_start ? c.source_start[v] : v * c.width;
  const int64_t to = c.target_start ? c.target_start[v] : v * c.width;
  if (!fits(from, c.width, c.source_size) || !fits(to, c.width, c.target_size)) {
    note(faults, bad_start);
    return;
  }
  Pack<T, N> x = load_anywhere<T, N>(c.source + from + column);
  if (c.scale) x = scaled(x, c.scale[v]);
  if (c.accumulate) {
    Pack<T, N> sum = load_anywhere<T, N>(c.target + to + column);
    add(sum, x);
    x = sum;
  }
  store_anywhere<T, N>(c.target + to + column, x);
}

template <int N, class T, class E> void gather_with(const Gather<T, E>& c, const Queue& queue) {
  pool_bags<N>("pooled_gather", c, Adding<T, N>(c), queue);
}

template <class T, int N> void copy_with(const Copy<T>& c, const Queue& queue) {
  const Layout layout = layout_of(c.width, N);
  const int64_t groups = layout.groups(block_threads);
  launch("copy_vectors", copy_each<T, N>, (c.n_vectors + groups - 1) / groups, tiles_of(layout, N), block_threads,
         queue.stream, c, layout, queue.faults);
}

}  // namespace

template <class T, class E> void pooled_gather(const Gather<T, E>& c, const Queue& queue) {
  with_pack<T>(c.rows, c.width, [&](auto n) { gather_with<decltype(n)::value>(c, queue); });
  if (!c.beside) return;
  gather_with<1>(Gather<T>{c.beside, c.index, c.offsets, c.beside_start, c.weights, c.scale, c.out, c.n_beside, 1,
                           c.n_ids, c.n_vectors, c.out_size, nullptr, nullptr, 0},
                 queue);
}

template <class T> void copy_vectors(const Copy<T>& c, const Queue& queue) {
  if (c.accumulate && c.target_start) add_vectors(c, queue);
  else if (c.width % most_packed<T> == 0) copy_with<T, most_packed<T>>(c, queue);
  else copy_with<T, 1>(c, queue);
}

template void pooled_gather(const Gather<float>&, const Queue&);
template void pooled_gather(const Gather<double>&, const Queue&);
template void pooled_gather(const Gather<float, Bf16>&, const Queue&);
template void pooled_gather(const Gather<float, Fp16>&, const Queue&);
template void copy_vectors(const Copy<float>&, const Queue&);
template void copy_vectors(const Copy<double>&, const Queue&);

}  // namespace hpcrec::cuda

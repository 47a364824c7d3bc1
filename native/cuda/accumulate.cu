// Vectors added to targets that may repeat, on the device.
//
// The vectors are sorted by where they go, stably. A group of lanes then takes each target and adds what goes there, in
// the order of the vectors: so no two groups write one place, and the bits are the definition's.
#include "accumulate.h"

#include "lanes.h"
#include "primitives.h"

namespace hpcrec::cuda {
namespace {

// Where vectors go; behind all others those that would lie outside.
template <class Key>
__global__ void __launch_bounds__(block_threads, 1)
    key_targets(const int64_t* start, int64_t n, int64_t width, int64_t size, Key* keys, unsigned* faults) {
  const int64_t i = this_thread();
  if (i >= n) return;
  const bool good = fits(start[i], width, size);
  if (!good) note(faults, bad_start);
  keys[i] = static_cast<Key>(good ? start[i] : size);
}

// A group for each vector in the sorted order; that of the first of a target adds all of them.
template <class T, int N, class Key>
__global__ void __launch_bounds__(block_threads, 1)
    add_runs(Copy<T> c, const Key* to, const uint32_t* numbers, Layout layout, unsigned* faults) {
  const Member me(layout);
  const int64_t first = me.group, column = (static_cast<int64_t>(blockIdx.y) * layout.lanes + me.lane) * N;
  if (first >= c.n_vectors || column >= c.width) return;
  const Key target = to[first];
  if (first > 0 && to[first - 1] == target) return;
  const auto start = static_cast<int64_t>(target);
  if (start >= c.target_size) return;
  if (first > 0 && start - static_cast<int64_t>(to[first - 1]) < c.width) {  // nor does what comes behind write here
    note(faults, bad_overlap);
    return;
  }
  constexpr int64_t none = -1;
  bool more = true;
  const auto find = [&](int64_t k, int64_t& from, T& weight) {
    from = none;
    weight = T{1};
    more = more && k < c.n_vectors && to[k] == target;
    if (!more) return;
    const int64_t v = numbers[k];
    from = c.source_start ? c.source_start[v] : v * c.width;
    if (!fits(from, c.width, c.source_size)) {
      note(faults, bad_start);
      from = none;
    }
    if (c.scale) weight = c.scale[v];
  };
  int64_t starts[rows_ahead];
  T weights[rows_ahead];
#pragma unroll
  for (int i = 0; i < rows_ahead; ++i) find(first + i, starts[i], weights[i]);
  Pack<T, N> sum = load_anywhere<T, N>(c.target + start + column);
  for (int64_t k = first + rows_ahead;; k += rows_ahead) {
    Pack<T, N> rows[rows_ahead];
    T weight[rows_ahead];
    bool there[rows_ahead];
#pragma unroll
    for (int i = 0; i < rows_ahead; ++i) {
      there[i] = starts[i] != none;
      weight[i] = weights[i];
      rows[i] = there[i] ? load_anywhere<T, N>(c.source + starts[i] + column) : zeros<T, N>();
    }
    const bool last = !more;
#pragma unroll
    for (int i = 0; i < rows_ahead; ++i) find(k + i, starts[i], weights[i]);
#pragma unroll
    for (int i = 0; i < rows_ahead; ++i) {
      if (!there[i]) continue;
      if (c.scale) add(sum, rows[i], weight[i]);
      else add(sum, rows[i]);
    }
    if (last) break;
  }
  store_anywhere<T, N>(c.target + start + column, sum);
}

template <class T, int N, class Key> void add_with(const Copy<T>& c, const Queue& queue) {
  const int64_t n = c.n_vectors;
  const Scratch<Key> keys(n, queue.stream), sorted(n, queue.stream);
  const Scratch<uint32_t> numbers(n, queue.stream);
  launch("copy_vectors: targets", key_targets<Key>, blocks_for(n), 1, block_threads, queue.stream, c.target_start, n,
         c.width, c.target_size, keys.data(), queue.faults);
  sort_numbered(keys.data(), n, bits_below(c.target_size + 1), sorted.data(), numbers.data(), queue);
  const Layout layout = layout_of(c.width, N);
  const int64_t groups = layout.groups(block_threads);
  launch("copy_vectors: sums", add_runs<T, N, Key>, (n + groups - 1) / groups, tiles_of(layout, N), block_threads,
         queue.stream, c, sorted.data(), numbers.data(), layout, queue.faults);
}

template <class T, int N> void add_packed(const Copy<T>& c, const Queue& queue) {
  if (bits_below(c.target_size + 1) <= narrow_bits) add_with<T, N, uint32_t>(c, queue);
  else add_with<T, N, int64_t>(c, queue);
}

}  // namespace

template <class T> void add_vectors(const Copy<T>& c, const Queue& queue) {
  if (c.width % most_packed<T> == 0) add_packed<T, most_packed<T>>(c, queue);
  else add_packed<T, 1>(c, queue);
}

template void add_vectors(const Copy<float>&, const Queue&);
template void add_vectors(const Copy<double>&, const Queue&);

}  // namespace hpcrec::cuda

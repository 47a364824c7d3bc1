// Pooled gather and vector copy on the device: bound by memory, so all that they do is ask for rows early enough.
#include "lookup.h"

#include "lanes.h"

namespace hpcrec::cuda {
namespace {

constexpr int rows_ahead = 4;        // asked for before the first of them is added, by each group
constexpr int64_t bags_a_group = 8;  // whose rows are asked for one after the other, across the ends of bags

// Sums of consecutive bags. Rows are asked for `rows_ahead` at a time, whatever bag they are of, and the indices of the
// next as many meanwhile: a bag of one row costs no wait of its own.
template <class T, class E, int N>
__global__ void __launch_bounds__(block_threads, 1) gather_bags(Gather<T, E> c, Layout layout, unsigned* faults) {
  const Member me(layout);
  const int64_t first = me.group * bags_a_group;
  if (first == 0 && (c.offsets[0] != 0 || c.offsets[c.n_vectors] != c.n_ids)) note(faults, bad_offsets);
  if (first >= c.n_vectors) return;
  const int64_t last = first + bags_a_group < c.n_vectors ? first + bags_a_group : c.n_vectors;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * layout.lanes + me.lane) * N;
  const bool mine = column < c.width;

  int64_t v = first, k = c.offsets[first], end = c.offsets[first + 1];
  const int64_t stop = c.offsets[last];
  bool good = k >= 0 && k <= end && end <= stop && stop <= c.n_ids;
  Pack<T, N> sum = zeros<T, N>();
  const auto finish = [&] {
    const int64_t start = c.out_start ? c.out_start[v] : v * c.width;
    if (!fits(start, c.width, c.out_size)) note(faults, bad_start);
    else if (mine) store_packs<T, N>(c.out + start + column, c.scale ? scaled(sum, c.scale[v]) : sum);
    sum = zeros<T, N>();
    if (++v < last) {
      const int64_t next = c.offsets[v + 1];
      good = good && next >= end && next <= stop;
      end = next;
    }
  };
  const auto index_at = [&](int64_t at) { return at < stop ? c.index[at] : int64_t{0}; };

  int64_t ids[rows_ahead];
  if (good) {
#pragma unroll
    for (int i = 0; i < rows_ahead; ++i) ids[i] = index_at(k + i);
  }
  while (good && k < stop) {
    Pack<E, N> rows[rows_ahead];
    T weights[rows_ahead];
#pragma unroll
    for (int i = 0; i < rows_ahead; ++i) {
      const bool there = k + i < stop && below(ids[i], c.n_rows);
      if (k + i < stop && !there) note(faults, bad_index);
      rows[i] = there && mine ? load<E, N>(c.rows + ids[i] * c.width + column) : zeros<E, N>();
      weights[i] = c.weights && k + i < stop ? c.weights[k + i] : T{1};
    }
#pragma unroll
    for (int i = 0; i < rows_ahead; ++i) ids[i] = index_at(k + rows_ahead + i);
#pragma unroll
    for (int i = 0; i < rows_ahead; ++i) {
      if (k + i >= stop) break;
      while (good && k + i >= end && v < last) finish();
      if (c.weights) add(sum, rows[i], weights[i]);
      else add(sum, rows[i]);
    }
    k += rows_ahead;
  }
  while (good && v < last) finish();
  if (!good) note(faults, bad_offsets);
}

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
  const Layout layout = layout_of(c.width, N);
  const int64_t bags_a_block = layout.groups(block_threads) * bags_a_group;
  launch("pooled_gather", gather_bags<T, E, N>, c.n_vectors / bags_a_block + 1, tiles_of(layout, N), block_threads,
         queue.stream, c, layout, queue.faults);
}

template <class T, int N> void copy_with(const Copy<T>& c, const Queue& queue) {
  const Layout layout = layout_of(c.width, N);
  const int64_t groups = layout.groups(block_threads);
  launch("copy_vectors", copy_each<T, N>, (c.n_vectors + groups - 1) / groups, tiles_of(layout, N), block_threads,
         queue.stream, c, layout, queue.faults);
}

}  // namespace

template <class T, class E> void pooled_gather(const Gather<T, E>& c, const Queue& queue) {
  const bool packs_of_8_bytes = c.width % most_packed<T> == 0 && reinterpret_cast<uintptr_t>(c.rows) % 8 == 0;
  if (packable(c.rows, c.width, sizeof(E))) gather_with<most_packed<E>>(c, queue);
  else if (sizeof(E) == 2 && packs_of_8_bytes) gather_with<most_packed<T>>(c, queue);
  else gather_with<1>(c, queue);
  if (!c.beside) return;
  gather_with<1>(Gather<T>{c.beside, c.index, c.offsets, c.beside_start, c.weights, c.scale, c.out, c.n_beside, 1,
                           c.n_ids, c.n_vectors, c.out_size, nullptr, nullptr, 0},
                 queue);
}

template <class T> void copy_vectors(const Copy<T>& c, const Queue& queue) {
  if (c.width % most_packed<T> == 0) copy_with<T, most_packed<T>>(c, queue);
  else copy_with<T, 1>(c, queue);
}

template void pooled_gather(const Gather<float>&, const Queue&);
template void pooled_gather(const Gather<double>&, const Queue&);
template void pooled_gather(const Gather<float, Bf16>&, const Queue&);
template void pooled_gather(const Gather<float, Fp16>&, const Queue&);
template void copy_vectors(const Copy<float>&, const Queue&);
template void copy_vectors(const Copy<double>&, const Queue&);

}  // namespace hpcrec::cuda

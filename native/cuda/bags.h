// How bags become vectors on the device: bound by memory, so all that it does is ask for rows early enough.
#pragma once
#include "lanes.h"

namespace hpcrec::cuda {

constexpr int64_t bags_a_group = 8;  // whose rows are asked for one after the other, across the ends of bags

// Vectors of consecutive bags. Rows are asked for `rows_ahead` at a time, whatever bag they are of, and the indices of
// the next as many meanwhile: a bag of one row costs no wait of its own. A call has the bags and where their vectors
// go, a pool what becomes of their rows: begin(), take(row, weight) for each row in order, write(to, bag, column). Rows
// are of E, T or halves, and packs of N elements of it; only a pool sees them as T.
template <class T, class E, int N, class Call, class Pool>
__global__ void __launch_bounds__(block_threads, 1) pool_each(Call c, Pool pool, Layout layout, unsigned* faults) {
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
  pool.begin();
  const auto finish = [&] {
    const int64_t start = c.out_start ? c.out_start[v] : v * c.width;
    if (!fits(start, c.width, c.out_size)) note(faults, bad_start);
    else if (mine) pool.write(c.out + start + column, v, column);
    pool.begin();
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
      weights[i] = k + i < stop ? pool.weight(k + i) : T{1};
    }
#pragma unroll
    for (int i = 0; i < rows_ahead; ++i) ids[i] = index_at(k + rows_ahead + i);
#pragma unroll
    for (int i = 0; i < rows_ahead; ++i) {
      if (k + i >= stop) break;
      while (good && k + i >= end && v < last) finish();
      pool.take(rows[i], weights[i]);
    }
    k += rows_ahead;
  }
  while (good && v < last) finish();
  if (!good) note(faults, bad_offsets);
}

template <int N, class T, class E, template <class, class> class Call, class Pool>
void pool_bags(const char* name, const Call<T, E>& c, const Pool& pool, const Queue& queue) {
  const Layout layout = layout_of(c.width, N);
  const int64_t bags_a_block = layout.groups(block_threads) * bags_a_group;
  launch(name, pool_each<T, E, N, Call<T, E>, Pool>, c.n_vectors / bags_a_block + 1, tiles_of(layout, N), block_threads,
         queue.stream, c, pool, layout, queue.faults);
}

// Calls f with how many elements of a row a lane takes at a time: 16 bytes, or of halves, where not every row begins on
// so many, 8; or one.
template <class T, class E, class F> void with_pack(const E* rows, int64_t width, F&& f) {
  if (packable(rows, width, sizeof(E))) return f(std::integral_constant<int, most_packed<E>>{});
  if constexpr (sizeof(E) == 2)
    if (width % most_packed<T> == 0 && reinterpret_cast<uintptr_t>(rows) % 8 == 0)
      return f(std::integral_constant<int, most_packed<T>>{});
  f(std::integral_constant<int, 1>{});
}

}  // namespace hpcrec::cuda

// Gradients of occurrences summed by row, and the optimizers' step, on the device.
//
// A group of lanes takes one row after the other. Rows of more than block_size occurrences are put on a list instead,
// with the blocks that their sums are made of; a second kernel sums the blocks, wherever a group is free, and a third
// folds each such row's blocks in order. So the bits are those of the definition, whatever the device and however hot a
// row.
#include "learn.h"

#include <algorithm>
#include <type_traits>

#include "lanes.h"
#include "primitives.h"
#include "step.h"

namespace hpcrec::cuda {
namespace {

constexpr int added_ahead = 2;  // gradients that a lane asks for before it adds the first of them
// Blocks that a multiprocessor has room for at least, by the registers of their threads: a kernel that sums rows is
// bound by how many rows it waits for at a time.
template <class T, int C> constexpr int least_blocks = C > 2 ? 1 : C > 1 ? 2 : sizeof(T) == 4 ? 4 : 3;
constexpr int64_t most_parts = 4;  // packs of a row that a lane holds; wider rows are merged first, then stepped
constexpr int64_t blocks_a_multiprocessor = 8;

// Rows of more than one block, and their blocks, on the device.
template <class T> struct LongRows {
  struct Row {
    int64_t u, first_block;
  };
  struct Range {
    int64_t first, last;
  };
  unsigned long long* counts;  // of rows, of blocks
  Row* rows;
  Range* blocks;
  T* sums;  // [blocks, width]
};

// Where an occurrence's gradient begins, and its weight; none behind the last, and of what is wrong.
template <class T> struct Source {
  int64_t start;
  T weight;
};
constexpr int64_t no_start = -1;

template <class T>
__device__ __forceinline__ Source<T> source_of(const Occurrences<T>& from, int64_t j, int64_t last, unsigned* faults) {
  Source<T> found{no_start, T{1}};
  if (j >= last) return found;
  const int64_t source = from.order[j];
  if (!below(source, from.n_sources)) {
    note(faults, bad_order);
    return found;
  }
  const int64_t start = from.source_start[source];
  if (from.weights) found.weight = from.weights[source];
  if (fits(start, from.width, from.gradients_size)) found.start = start;
  else note(faults, bad_start);
  return found;
}

// Adds occurrences [first, last), of which `head` is the first one's source, to a lane's columns, in order. Gradients
// are asked for several at a time, and the sources of the next as many meanwhile.
template <class T, int N, int C>
__device__ void add_occurrences(const Occurrences<T>& from, int64_t first, int64_t last, const Source<T>& head,
                                const Layout& layout, const Member& me, Columns<T, N, C>& sum, unsigned* faults) {
  Source<T> next[added_ahead];
  next[0] = head;
#pragma unroll
  for (int i = 1; i < added_ahead; ++i) next[i] = source_of(from, first + i, last, faults);
  for (int64_t j = first; j < last; j += added_ahead) {
    Pack<T, N> g[added_ahead][C];
    T weight[added_ahead];
#pragma unroll
    for (int i = 0; i < added_ahead; ++i) {
      weight[i] = next[i].weight;
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const int64_t column = column_of<N>(layout, me, static_cast<int64_t>(blockIdx.y) * C + c);
        g[i][c] = next[i].start != no_start && column < layout.width
                      ? load_anywhere<T, N>(from.gradients + next[i].start + column)
                      : zeros<T, N>();
      }
    }
#pragma unroll
    for (int i = 0; i < added_ahead; ++i) next[i] = source_of(from, j + added_ahead + i, last, faults);
#pragma unroll
    for (int i = 0; i < added_ahead; ++i) {
      if (j + i >= last) break;
#pragma unroll
      for (int c = 0; c < C; ++c) {
        if (from.weights) add(sum.part[c], g[i][c], weight[i]);
        else add(sum.part[c], g[i][c]);
      }
    }
  }
}

template <class T, int N, int C> __device__ __forceinline__ Columns<T, N, C> no_columns() {
  Columns<T, N, C> sum;
#pragma unroll
  for (int c = 0; c < C; ++c) sum.part[c] = zeros<T, N>();
  return sum;
}

// Where sums go: into an array ...
template <class T> struct Write {
  T* out;  // [n_unique, width]

  struct Nothing {};
  __device__ __forceinline__ int64_t row_of(int64_t u) const { return u; }
  template <int N, int C> __device__ __forceinline__ Nothing ask(int64_t, const Layout&, const Member&) const {
    return {};
  }
  template <int N, int C>
  __device__ void take(int64_t u, int64_t, const Nothing&, const Columns<T, N, C>& sum, const Layout& layout,
                       const Member& me, T*, unsigned*) const {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const int64_t column = column_of<N>(layout, me, static_cast<int64_t>(blockIdx.y) * C + c);
      if (column < layout.width) store_anywhere<T, N>(out + u * layout.width + column, sum.part[c]);
    }
  }
};

// ... or into the rows, by an optimizer's step: what that reads is asked for before sums are made.
template <class T, class Rows = T*> struct Step {
  Target<T, Rows> target;
  Learning<T> how;

  __device__ __forceinline__ int64_t row_of(int64_t u) const { return target.unique[u]; }
  template <int N, int C>
  __device__ __forceinline__ Before<T, N, C> ask(int64_t id, const Layout& layout, const Member& me) const {
    if (below(id, target.n_rows)) return read_row<T, N, C>(target.rows, id, 0, how, layout, me);
    return {};
  }
  template <int N, int C>
  __device__ void take(int64_t u, int64_t id, const Before<T, N, C>& before, const Columns<T, N, C>& sum,
                       const Layout& layout, const Member& me, T* memory, unsigned* faults) const {
    if (below(id, target.n_rows)) step_row<T, N, C>(target.rows, id, 0, u, how, before, sum, layout, me, memory);
    else note(faults, bad_unique);
  }
};

// Of a block, of which each group has a part.
template <class T, int N, int C> struct Memory {
  Pack<T, N> packs[block_threads * C];

  __device__ __forceinline__ T* own(const Layout& layout) {
    return reinterpret_cast<T*>(packs + threadIdx.x / layout.lanes * layout.lanes * C);
  }
};

// What has to be known of a row before anything of it can be asked for.
template <class T> struct Looked {
  int64_t first, last, row;  // its occurrences, none where `last` is before `first`: something is wrong
  Source<T> head;
};

template <class T, class Taker>
__device__ __forceinline__ Looked<T> look_up(const Occurrences<T>& from, const Taker& taker, int64_t u,
                                             unsigned* faults) {
  Looked<T> found{from.segments[u], from.segments[u + 1], taker.row_of(u), {no_start, T{1}}};
  if (found.first < 0 || found.first > found.last || found.last > from.n_occurrences) {
    note(faults, bad_offsets);
    found.first = 0;
    found.last = -1;
  } else if (found.last - found.first <= block_size) {
    found.head = source_of(from, found.first, found.last, faults);
  }
  return found;
}

// Puts a row on the list. All tiles share one. Where segments overlap there is no room for it: check_offsets has noted
// that.
template <class T>
__device__ void list_row(int64_t u, const Looked<T>& its, const Layout& layout, const Member& me,
                         const LongRows<T>& more, const unsigned* faults) {
  if (blockIdx.y != 0 || (*faults & bad_offsets)) return;
  const int64_t n_blocks = (its.last - its.first + block_size - 1) / block_size;
  unsigned long long block = 0;
  if (me.lane == 0) {
    block = atomicAdd(more.counts + 1, static_cast<unsigned long long>(n_blocks));
    more.rows[atomicAdd(more.counts, 1ull)] = {u, static_cast<int64_t>(block)};
  }
  block = __shfl_sync(me.mask, block, 0, static_cast<int>(layout.lanes));
  for (int64_t b = me.lane; b < n_blocks; b += layout.lanes) {
    const int64_t start = its.first + b * block_size;
    more.blocks[block + b] = {start, start + block_size < its.last ? start + block_size : its.last};
  }
}

// A group takes several rows, at most as many as it has lanes: each of these looks one of them up, so that all are
// waited for at a time, and then they are summed one after the other.
template <class T, int N, int C, class Taker>
__global__ void __launch_bounds__(block_threads, least_blocks<T, C>)
    sum_rows(Occurrences<T> from, Taker taker, Layout layout, int rows_a_group, LongRows<T> more, unsigned* faults) {
  __shared__ Memory<T, N, C> memory;
  __shared__ Looked<T> looked[block_threads];
  const Member me(layout);
  const int64_t begin = me.group * rows_a_group;
  if (begin == 0 && (from.segments[0] != 0 || from.segments[from.n_unique] != from.n_occurrences))
    note(faults, bad_offsets);
  if (begin >= from.n_unique) return;
  const int n = from.n_unique - begin < rows_a_group ? static_cast<int>(from.n_unique - begin) : rows_a_group;
  if (static_cast<int>(me.lane) < n) looked[threadIdx.x] = look_up(from, taker, begin + me.lane, faults);
  __syncwarp(me.mask);
  for (int r = 0; r < n; ++r) {
    const Looked<T>& its = looked[threadIdx.x - me.lane + r];
    if (its.last < its.first) continue;
    if (its.last - its.first > block_size) {
      list_row(begin + r, its, layout, me, more, faults);
      continue;
    }
    const auto before = taker.template ask<N, C>(its.row, layout, me);
    Columns<T, N, C> sum = no_columns<T, N, C>();
    add_occurrences<T, N, C>(from, its.first, its.last, its.head, layout, me, sum, faults);
    taker.template take<N, C>(begin + r, its.row, before, sum, layout, me, memory.own(layout), faults);
  }
}

template <class T, int N, int C>
__global__ void __launch_bounds__(block_threads, 1)
    sum_blocks(Occurrences<T> from, Layout layout, LongRows<T> more, unsigned* faults) {
  const Member me(layout);
  const int64_t n_groups = static_cast<int64_t>(gridDim.x) * layout.groups(blockDim.x);
  const Write<T> write{more.sums};
  for (int64_t block = me.group; block < static_cast<int64_t>(more.counts[1]); block += n_groups) {
    Columns<T, N, C> sum = no_columns<T, N, C>();
    const auto [first, last] = more.blocks[block];
    add_occurrences<T, N, C>(from, first, last, source_of(from, first, last, faults), layout, me, sum, faults);
    write.template take<N, C>(block, block, {}, sum, layout, me, nullptr, faults);
  }
}

template <class T, int N, int C, class Taker>
__global__ void __launch_bounds__(block_threads, 1)
    fold_rows(Occurrences<T> from, Taker taker, Layout layout, LongRows<T> more, unsigned* faults) {
  __shared__ Memory<T, N, C> memory;
  const Member me(layout);
  const int64_t n_groups = static_cast<int64_t>(gridDim.x) * layout.groups(blockDim.x);
  for (int64_t r = me.group; r < static_cast<int64_t>(more.counts[0]); r += n_groups) {
    const int64_t u = more.rows[r].u, first = more.rows[r].first_block, row = taker.row_of(u);
    const auto before = taker.template ask<N, C>(row, layout, me);
    const int64_t n_blocks = (from.segments[u + 1] - from.segments[u] + block_size - 1) / block_size;
    Columns<T, N, C> sum = no_columns<T, N, C>();
    for (int64_t b = first; b < first + n_blocks; ++b) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const int64_t column = column_of<N>(layout, me, static_cast<int64_t>(blockIdx.y) * C + c);
        if (column < layout.width) add(sum.part[c], load_anywhere<T, N>(more.sums + b * layout.width + column));
      }
    }
    taker.template take<N, C>(u, row, before, sum, layout, me, memory.own(layout), faults);
  }
}

template <class T, int N, int C, class Rows>
__global__ void __launch_bounds__(block_threads, 1)
    step_rows(Step<T, Rows> step, const T* merged, Layout layout, unsigned* faults) {
  __shared__ Memory<T, N, C> memory;
  const Member me(layout);
  const int64_t u = me.group;
  if (u >= step.target.n_unique) return;
  const int64_t row = step.row_of(u);
  const auto before = step.template ask<N, C>(row, layout, me);
  Columns<T, N, C> g = no_columns<T, N, C>();
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int64_t column = column_of<N>(layout, me, c);
    if (column < layout.width) g.part[c] = load_anywhere<T, N>(merged + u * layout.width + column);
  }
  step.template take<N, C>(u, row, before, g, layout, me, memory.own(layout), faults);
}

// Squared norms of rows of any width, a thread for each of their strided sums.
template <class T>
__global__ void __launch_bounds__(block_threads, 1) norms(const T* merged, int64_t n, int64_t width, T* out) {
  __shared__ T memory[block_threads];
  const int64_t u = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / norm_lanes;
  const int lane = static_cast<int>(threadIdx.x % norm_lanes);
  T own = 0;
  if (u < n)
    for (int64_t d = lane; d < width; d += norm_lanes) {
      const T x = merged[u * width + d];
      own += x * x;
    }
  memory[threadIdx.x] = own;
  __syncthreads();
  if (u >= n || lane != 0) return;
  T sums[norm_lanes];
#pragma unroll
  for (int i = 0; i < norm_lanes; ++i) sums[i] = memory[threadIdx.x + i];
  out[u] = fold(sums);
}

// Calls f(C) with the packs that each lane holds of rows of this layout, or with 0 where these are too many.
template <class F> void with_parts(unsigned tiles, F&& f) {
  if (tiles <= 1) f(std::integral_constant<int, 1>{});
  else if (tiles <= 2) f(std::integral_constant<int, 2>{});
  else if (tiles <= most_parts) f(std::integral_constant<int, 4>{});
  else f(std::integral_constant<int, 0>{});
}

template <class T, int N, int C, class Taker>
void sum_into(const Occurrences<T>& from, const Taker& taker, unsigned grid_y, const Queue& queue) {
  const Layout layout = layout_of(from.width, N);
  const int64_t groups = layout.groups(block_threads);
  // A row on the list has more than block_size occurrences, so that its blocks are fewer than twice the whole ones.
  const int64_t most_rows = from.n_occurrences / (block_size + 1), most_blocks = 2 * (from.n_occurrences / block_size);
  Scratch<unsigned long long> counts(2, queue.stream);
  Scratch<typename LongRows<T>::Row> rows(most_rows, queue.stream);
  Scratch<typename LongRows<T>::Range> blocks(most_blocks, queue.stream);
  Scratch<T> sums(most_blocks * from.width, queue.stream);
  const LongRows<T> more{counts.data(), rows.data(), blocks.data(), sums.data()};
  zero(counts.data(), 2 * sizeof(unsigned long long), queue.stream);
  // So that blocks of long rows are as few as there is room for.
  if (most_rows > 0) check_offsets(from.segments, from.n_unique, from.n_occurrences, queue);
  // A group takes so few that every multiprocessor still has its share of blocks.
  const int64_t at_once = blocks_a_multiprocessor * multiprocessors() * groups;
  const auto rows_a_group = static_cast<int>(std::clamp<int64_t>(from.n_unique * grid_y / at_once, 1, layout.lanes));
  launch("sum_rows", sum_rows<T, N, C, Taker>, from.n_unique / (groups * rows_a_group) + 1, grid_y, block_threads,
         queue.stream, from, taker, layout, rows_a_group, more, queue.faults);
  if (most_rows == 0) return;
  const int64_t device_blocks = blocks_a_multiprocessor * multiprocessors();
  launch("sum_blocks", sum_blocks<T, N, C>, std::min(most_blocks / groups + 1, device_blocks), grid_y, block_threads,
         queue.stream, from, layout, more, queue.faults);
  launch("fold_rows", fold_rows<T, N, C, Taker>, std::min(most_rows / groups + 1, device_blocks), grid_y, block_threads,
         queue.stream, from, taker, layout, more, queue.faults);
}

// Rows of halves are moved in packs of as many elements as states have in 16 bytes.
template <class T, class Rows> bool packable_rows(const Target<T, Rows>& to, const Learning<T>& how) {
  const auto good = [&](const T* array) { return !array || packable(array, to.width, sizeof(T)); };
  const bool per_element = how.rule == Rule::adagrad || how.rule == Rule::adam;
  if (per_element && !(good(how.state1) && good(how.state2))) return false;
  if constexpr (std::is_same_v<Rows, HalfRows>)
    return to.width % most_packed<T> == 0 && reinterpret_cast<uintptr_t>(to.rows.bits) % 8 == 0;
  else return good(to.rows);
}

// Rows that are too wide for a group's registers: a step of each element, the norms found before.
template <class T, class Rows>
__global__ void __launch_bounds__(block_threads, 1)
    step_elements(Target<T, Rows> to, const T* merged, Learning<T> how, const T* norm, unsigned* faults) {
  const int64_t u = blockIdx.x;
  const int64_t id = to.unique[u];
  if (!below(id, to.n_rows)) {
    note(faults, bad_unique);
    return;
  }
  const Layout lone{to.width, 1};
  const Member alone(lone);
  Learning<T> its = how;
  its.norm = nullptr;
  T row_rate = 0;
  if (how.rule == Rule::rowwise_adagrad) {
    const T sum = how.state1[id] + norm[u] / how.total_width;
    __syncthreads();
    if (threadIdx.x == 0) how.state1[id] = sum;
    row_rate = how.rate / (std::sqrt(sum) + how.eps);
    its.rule = Rule::sgd;
    its.rate = row_rate;
  }
  for (int64_t d = threadIdx.x; d < to.width; d += blockDim.x) {
    Columns<T, 1, 1> g;
    g.part[0].x[0] = merged[u * to.width + d];
    const Before<T, 1, 1> before = read_row<T, 1, 1>(to.rows, id, d, its, lone, alone);
    step_row<T, 1, 1>(to.rows, id, d, u, its, before, g, lone, alone, nullptr);
  }
}

template <class T, class Rows>
void step_wide(const Target<T, Rows>& to, const T* merged, const Learning<T>& how, const Queue& queue) {
  const bool own_norm = how.rule == Rule::rowwise_adagrad && !how.norm;
  Scratch<T> norm(own_norm ? to.n_unique : 0, queue.stream);
  if (own_norm) squared_norms(merged, to.n_unique, to.width, norm.data(), queue);
  launch("update of wide rows", step_elements<T, Rows>, to.n_unique, 1, block_threads, queue.stream, to, merged, how,
         own_norm ? static_cast<const T*>(norm.data()) : how.norm, queue.faults);
}

template <int N, class T, class Rows>
void update_with(const Target<T, Rows>& to, const T* merged, const Learning<T>& how, const Queue& queue) {
  const Layout layout = layout_of(to.width, N);
  const int64_t groups = layout.groups(block_threads);
  with_parts(tiles_of(layout, N), [&](auto parts) {
    constexpr int C = decltype(parts)::value;
    if constexpr (C > 0) {
      launch("update", step_rows<T, N, C, Rows>, (to.n_unique + groups - 1) / groups, 1, block_threads, queue.stream,
             Step<T, Rows>{to, how}, merged, layout, queue.faults);
    } else {
      step_wide(to, merged, how, queue);
    }
  });
}

template <int N, class T, class Rows>
void merge_update_with(const Target<T, Rows>& to, const Occurrences<T>& from, const Learning<T>& how,
                       const Queue& queue) {
  with_parts(tiles_of(layout_of(to.width, N), N), [&](auto parts) {
    constexpr int C = decltype(parts)::value;
    if constexpr (C > 0) {
      sum_into<T, N, C>(from, Step<T, Rows>{to, how}, 1, queue);
    } else {
      Scratch<T> merged(from.n_unique * from.width, queue.stream);
      merge(from, merged.data(), queue);
      step_wide(to, static_cast<const T*>(merged.data()), how, queue);
    }
  });
}

}  // namespace

template <class T> void merge(const Occurrences<T>& from, T* merged, const Queue& queue) {
  const auto with = [&](auto pack) {
    constexpr int N = decltype(pack)::value;
    sum_into<T, N, 1>(from, Write<T>{merged}, tiles_of(layout_of(from.width, N), N), queue);
  };
  if (from.width % most_packed<T> == 0) with(std::integral_constant<int, most_packed<T>>{});
  else with(std::integral_constant<int, 1>{});
}

template <class T> void squared_norms(const T* merged, int64_t n, int64_t width, T* out, const Queue& queue) {
  launch("squared_norm", norms<T>, (n * norm_lanes + block_threads - 1) / block_threads, 1, block_threads, queue.stream,
         merged, n, width, out);
}

template <class T, class Rows>
void update(const Target<T, Rows>& to, const T* merged, const Learning<T>& how, const Queue& queue) {
  if (packable_rows(to, how)) update_with<most_packed<T>>(to, merged, how, queue);
  else update_with<1>(to, merged, how, queue);
}

template <class T, class Rows>
void merge_update(const Target<T, Rows>& to, const Occurrences<T>& from, const Learning<T>& how, const Queue& queue) {
  if (packable_rows(to, how)) merge_update_with<most_packed<T>>(to, from, how, queue);
  else merge_update_with<1>(to, from, how, queue);
}

#define HPCREC_UPDATE(T, Rows)                                                              \
  template void update(const Target<T, Rows>&, const T*, const Learning<T>&, const Queue&); \
  template void merge_update(const Target<T, Rows>&, const Occurrences<T>&, const Learning<T>&, const Queue&);
#define HPCREC_LEARN(T)                                                      \
  template void merge(const Occurrences<T>&, T*, const Queue&);              \
  template void squared_norms(const T*, int64_t, int64_t, T*, const Queue&); \
  HPCREC_UPDATE(T, T*)
HPCREC_LEARN(float)
HPCREC_LEARN(double)
HPCREC_UPDATE(float, HalfRows)
#undef HPCREC_LEARN
#undef HPCREC_UPDATE

}  // namespace hpcrec::cuda

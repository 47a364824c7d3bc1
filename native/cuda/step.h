// The optimizers' step of one row, by the lanes of a group: operation by operation that of hpcrec/optimizer.h.
#pragma once
#include <cmath>

#include "half_packs.h"
#include "hpcrec/learn.h"

namespace hpcrec::cuda {

constexpr int norm_lanes = 16;  // strided sums of a squared norm, as the definition has them

// A lane's columns of one vector: C packs, a group's width apart.
template <class T, int N, int C> struct Columns {
  Pack<T, N> part[C];
};
template <int N> __device__ __forceinline__ int64_t column_of(const Layout& layout, const Member& me, int64_t part) {
  return (part * layout.lanes + me.lane) * N;
}

// Folds the strided sums in halves.
template <class T, int HALF = norm_lanes / 2> __device__ __forceinline__ T fold(T (&sums)[norm_lanes]) {
#pragma unroll
  for (int i = 0; i < HALF; ++i) sums[i] += sums[i + HALF];
  if constexpr (HALF > 1) return fold<T, HALF / 2>(sums);
  else return sums[0];
}

// Sum of squares of a group's vector, in the order of the definition: every lane gets it. `memory` is the group's own,
// of shared memory, of lanes * N * C elements, and begins on a pack.
template <class T, int N, int C>
__device__ T squared_norm(const Columns<T, N, C>& g, const Layout& layout, const Member& me, T* memory) {
#pragma unroll
  for (int c = 0; c < C; ++c) {
    Pack<T, N> squares;
#pragma unroll
    for (int i = 0; i < N; ++i) squares.x[i] = g.part[c].x[i] * g.part[c].x[i];
    store<T, N>(memory + column_of<N>(layout, me, c), squares);
  }
  __syncwarp(me.mask);
  const auto width = static_cast<int>(layout.width), lanes = static_cast<int>(layout.lanes);
  if (width > norm_lanes) {
    // Lane t adds squares t, t + 16, ... in order; groups of 8 lanes take two sums each.
    T own[2] = {T{0}, T{0}};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = static_cast<int>(me.lane) + i * lanes;
      if (t < norm_lanes)
        for (int d = t; d < width; d += norm_lanes) own[i] += memory[d];
    }
    __syncwarp(me.mask);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = static_cast<int>(me.lane) + i * lanes;
      if (t < norm_lanes) memory[t] = own[i];
    }
    __syncwarp(me.mask);
  }
  T sums[norm_lanes];
#pragma unroll
  for (int i = 0; i < norm_lanes; i += N) {
    const Pack<T, N> some = i < width ? load<T, N>(memory + i) : zeros<T, N>();
#pragma unroll
    for (int j = 0; j < N; ++j) sums[i + j] = some.x[j];
  }
  __syncwarp(me.mask);  // before the memory is used again
  return fold(sums);
}

// What a step reads of a row, from some column on: asked for before the row's gradient is known, so that both are
// waited for at a time. States of elements are not among it: the registers that they take leave room for fewer rows at
// a time.
template <class T, int N, int C> struct Before {
  T sum;  // row-wise Adagrad's accumulator
  Columns<T, N, C> row;
};

// Rows are an array of T, or HalfRows.
template <class T, int N, int C, class Rows>
__device__ __forceinline__ Before<T, N, C> read_row(const Rows& rows, int64_t id, int64_t first, const Learning<T>& how,
                                                    const Layout& layout, const Member& me) {
  Before<T, N, C> before;
  const int64_t at = id * layout.width;
  before.sum = how.rule == Rule::rowwise_adagrad ? how.state1[id] : T{0};
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int64_t column = first + column_of<N>(layout, me, c);
    before.row.part[c] = column < layout.width ? read_columns<T, N>(rows, at, column) : zeros<T, N>();
  }
  return before;
}

// Moves row `id`, from column `first` on, by its merged gradient g. `u` is its place among the step's rows.
template <class T, int N, int C, class Rows>
__device__ void step_row(const Rows& rows, int64_t id, int64_t first, int64_t u, const Learning<T>& how,
                         const Before<T, N, C>& before, const Columns<T, N, C>& g, const Layout& layout,
                         const Member& me, T* memory) {
  const int64_t at = id * layout.width;
  T row_rate = 0;
  if (how.rule == Rule::rowwise_adagrad) {
    const T square = how.norm ? how.norm[u] : squared_norm(g, layout, me, memory);
    const T sum = before.sum + square / how.total_width;
    __syncwarp(me.mask);  // all have read what the first then writes
    if (me.lane == 0) how.state1[id] = sum;
    row_rate = how.rate / (std::sqrt(sum) + how.eps);
  }
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int64_t column = first + column_of<N>(layout, me, c);
    if (column >= layout.width) continue;
    const Pack<T, N>& x = g.part[c];
    Pack<T, N> row = before.row.part[c];
    if (how.rule == Rule::sgd) {
#pragma unroll
      for (int i = 0; i < N; ++i) row.x[i] -= how.rate * x.x[i];
    } else if (how.rule == Rule::rowwise_adagrad) {
#pragma unroll
      for (int i = 0; i < N; ++i) row.x[i] -= row_rate * x.x[i];
    } else if (how.rule == Rule::adagrad) {
      Pack<T, N> sum = load<T, N>(how.state1 + at + column);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        sum.x[i] += x.x[i] * x.x[i];
        row.x[i] -= how.rate * x.x[i] / (std::sqrt(sum.x[i]) + how.eps);
      }
      store<T, N>(how.state1 + at + column, sum);
    } else {
      Pack<T, N> m = load<T, N>(how.state1 + at + column), v = load<T, N>(how.state2 + at + column);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        m.x[i] += (x.x[i] - m.x[i]) * how.rest1;
        v.x[i] += (x.x[i] * x.x[i] - v.x[i]) * how.rest2;
        row.x[i] -= how.rate * (m.x[i] / (std::sqrt(v.x[i]) + how.eps));
      }
      store<T, N>(how.state1 + at + column, m);
      store<T, N>(how.state2 + at + column, v);
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
      row.x[i] = row.x[i] > how.bound ? how.bound : row.x[i] < -how.bound ? -how.bound : row.x[i];
    write_columns<T, N>(rows, id, at, column, row);
  }
}

}  // namespace hpcrec::cuda

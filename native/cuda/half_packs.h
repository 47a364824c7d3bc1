// Packs of a row's columns, read and written by a lane: of an array of T, or of halves, which it sees as float32.
#pragma once
#include "lanes.h"

namespace hpcrec::cuda {

// Columns from `column` on, a multiple of N, of the row that begins at `at`.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> read_columns(const T* rows, int64_t at, int64_t column) {
  return load<T, N>(rows + at + column);
}
template <class T, int N>
__device__ __forceinline__ Pack<float, N> read_columns(const HalfRows& rows, int64_t at, int64_t column) {
  const Pack<uint16_t, N> bits = load<uint16_t, N>(rows.bits + at + column);
  Pack<float, N> x;
#pragma unroll
  for (int i = 0; i < N; ++i)
    x.x[i] = rows.kind == HalfKind::fp16 ? widened(Fp16{bits.x[i]}) : widened(Bf16{bits.x[i]});
  return x;
}

// The same of row `id`, written.
template <class T, int N>
__device__ __forceinline__ void write_columns(T* rows, int64_t, int64_t at, int64_t column, const Pack<T, N>& x) {
  store_at_once<T, N>(rows + at + column, x);
}
template <class T, int N>
__device__ __forceinline__ void write_columns(const HalfRows& rows, int64_t id, int64_t at, int64_t column,
                                              const Pack<float, N>& x) {
  const uint64_t key = key_of_row(rows.draws, id);
  uint32_t random[N];
  if constexpr (N == 1) {
    random[0] = random_of_column(key, column);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const uint32_t word = random_word(key, static_cast<uint32_t>((column + i) / 2));
      random[i] = word & 0xffff;
      random[i + 1] = word >> 16;
    }
  }
  Pack<uint16_t, N> bits;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    uint32_t half;
    if (rows.kind == HalfKind::fp16)
      half = rows.nearest ? nearest_half<Fp16>(x.x[i]) : stochastic_half<Fp16>(x.x[i], random[i]);
    else half = rows.nearest ? nearest_half<Bf16>(x.x[i]) : stochastic_half<Bf16>(x.x[i], random[i]);
    bits.x[i] = static_cast<uint16_t>(half);
  }
  store<uint16_t, N>(rows.bits + at + column, bits);
}

}  // namespace hpcrec::cuda

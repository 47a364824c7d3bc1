// Batches of rows of halves, copied to float32 and back. W is the width, or 0 where it is not known to the compiler.
#pragma once
#include "hpcrec/row.h"

namespace hpcrec {

typedef uint32_t __attribute__((aligned(2), may_alias)) HalfPair;  // in memory, the first in the lower half

template <class E> HPCREC_INLINE void read_elements(const E* __restrict from, int64_t n, float* __restrict out) {
  constexpr int lanes = 8;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    typename Lanes<float, lanes>::Part x;
    read_lanes<float, lanes>(from + i, x);
    std::memcpy(out + i, &x, sizeof x);
  }
  for (; i < n; ++i) out[i] = widened(from[i]);
}

template <class E, bool NEAREST>
HPCREC_INLINE void write_row(const float* __restrict from, int64_t width, uint64_t key, uint16_t* __restrict out) {
  HalfPair* __restrict pairs = reinterpret_cast<HalfPair*>(out);
#pragma omp simd
  for (int64_t i = 0; i < width / 2; ++i) {
    const float x = from[2 * i], y = from[2 * i + 1];
    if constexpr (NEAREST) {
      pairs[i] = nearest_half<E>(x) | nearest_half<E>(y) << 16;
    } else {
      const uint32_t word = random_word(key, static_cast<uint32_t>(i));
      pairs[i] = stochastic_half<E>(x, word & 0xffff) | stochastic_half<E>(y, word >> 16) << 16;
    }
  }
  if (width % 2 == 0) return;
  const float last = from[width - 1];
  const uint32_t random = random_word(key, static_cast<uint32_t>(width / 2)) & 0xffff;
  out[width - 1] = static_cast<uint16_t>(NEAREST ? nearest_half<E>(last) : stochastic_half<E>(last, random));
}

// Calls f with an element of the kind, and with whether it is rounded to the nearest.
template <class F> HPCREC_INLINE void with_rounding(const HalfRows& rows, F&& f) {
  if (rows.kind == HalfKind::fp16) {
    if (rows.nearest) f(Fp16{}, std::true_type{});
    else f(Fp16{}, std::false_type{});
  } else {
    if (rows.nearest) f(Bf16{}, std::true_type{});
    else f(Bf16{}, std::false_type{});
  }
}

template <int W> void read_rows(const HalfRows& rows, const int64_t* ids, int64_t n, int64_t width, float* out) {
  const int64_t columns = W ? W : width;
  with_rounding(rows, [&](auto element, auto) {
    const auto* from = reinterpret_cast<const decltype(element)*>(rows.bits);
    for (int64_t i = 0; i < n; ++i) read_elements(from + ids[i] * columns, columns, out + i * columns);
  });
}

template <int W>
void write_rows(const HalfRows& rows, const int64_t* ids, int64_t n, int64_t width, const float* from) {
  const int64_t columns = W ? W : width;
  with_rounding(rows, [&](auto element, auto nearest) {
    for (int64_t i = 0; i < n; ++i)
      write_row<decltype(element), decltype(nearest)::value>(
          from + i * columns, columns, key_of_row(rows.draws, ids[i]), rows.bits + ids[i] * columns);
  });
}

}  // namespace hpcrec

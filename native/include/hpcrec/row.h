// Rows of D elements: sums held in registers where D is a width that models use, and prefetch.
// W is D where it is known at compile time, and 0 where it is not.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__F16C__) && defined(__AVX2__)
#define HPCREC_READS_8_HALVES
#include <immintrin.h>
#endif

#include "hpcrec/half_rows.h"

namespace hpcrec {

// For functions that prefetch: GCC takes a function that does nothing else for one without effect, and leaves out the
// calls of it that it has not inlined by then.
#define HPCREC_INLINE inline __attribute__((always_inline))

// Brings a row towards the core: both ends, since a row need not begin on a cache line. W as in Sum.
template <int W, bool WRITE = false, class T> HPCREC_INLINE void prefetch_row(const T* row, int64_t width) {
  const char* p = reinterpret_cast<const char*>(row);
  const int64_t bytes = (W ? W : width) * static_cast<int64_t>(sizeof(T));
#pragma GCC unroll 16
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(p + at, WRITE, 3);
  if constexpr (W != 1) __builtin_prefetch(p + bytes - 1, WRITE, 3);  // one element lies on one line
}

// Rows asked for ahead of the one in work: enough in flight for a DRAM latency, few enough for the first-level cache.
template <class T> int64_t rows_ahead(int64_t width) {
  return std::max<int64_t>(4, std::min<int64_t>(32, 2048 / (width * static_cast<int64_t>(sizeof(T)))));
}

// Rows that are worked on in one go, while the next as many are on their way: as rows_ahead, and enough of them to fill
// the lanes of a register with one number a row.
constexpr int64_t most_batch_rows = 64;
template <class T> constexpr int64_t batch_rows(int64_t width) {
  const int64_t rows = 4096 / (width * static_cast<int64_t>(sizeof(T)));
  return rows < 8 ? 8 : rows > most_batch_rows ? most_batch_rows : rows;
}

template <class T, int N> struct Lanes {
  typedef T Part __attribute__((vector_size(N * sizeof(T))));
};
template <class T> struct Lanes<T, 1> {
  using Part = T;  // GCC keeps a vector of one in memory
};

// N consecutive elements of a row, as lanes of T. Not returned: where registers are smaller, that would be another ABI.
template <class T, int N> HPCREC_INLINE void read_lanes(const T* from, typename Lanes<T, N>::Part& x) {
  std::memcpy(&x, from, sizeof x);
}
template <class T, int N> HPCREC_INLINE void read_lanes(const Bf16* from, typename Lanes<float, N>::Part& x) {
#ifdef HPCREC_READS_8_HALVES
  if constexpr (N == 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    x = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    return;
  }
#endif
  float elements[N];
  for (int i = 0; i < N; ++i) elements[i] = widened(from[i]);
  std::memcpy(&x, elements, sizeof x);
}
template <class T, int N> HPCREC_INLINE void read_lanes(const Fp16* from, typename Lanes<float, N>::Part& x) {
#ifdef HPCREC_READS_8_HALVES
  if constexpr (N == 8) {
    x = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return;
  }
#endif
  float elements[N];
  for (int i = 0; i < N; ++i) elements[i] = widened(from[i]);
  std::memcpy(&x, elements, sizeof x);
}

// Running sum of rows, of T or of halves, from +0, one rounding a product and one an addition.
template <class T, int W> class Sum {
  static constexpr int n_lanes = W * sizeof(T) < 32 ? W : 32 / sizeof(T);
  static constexpr int n_parts = W / n_lanes;
  using Part = typename Lanes<T, n_lanes>::Part;
  Part part_[n_parts];

 public:
  // `memory` has room for the sum; a fixed width does not need it.
  Sum(T* /*memory*/, int64_t /*width*/) {
#pragma GCC unroll 64
    for (int i = 0; i < n_parts; ++i) part_[i] = Part{};
  }
  template <class E> void add(const E* row) {
#pragma GCC unroll 64
    for (int i = 0; i < n_parts; ++i) {
      Part x;
      read_lanes<T, n_lanes>(row + i * n_lanes, x);
      part_[i] += x;
    }
  }
  template <class E> void add(const E* row, T weight) {
#pragma GCC unroll 64
    for (int i = 0; i < n_parts; ++i) {
      Part x;
      read_lanes<T, n_lanes>(row + i * n_lanes, x);
      part_[i] += weight * x;
    }
  }
  void add(const Sum& other) {
#pragma GCC unroll 64
    for (int i = 0; i < n_parts; ++i) part_[i] += other.part_[i];
  }
  void store(T* to) const {
#pragma GCC unroll 64
    for (int i = 0; i < n_parts; ++i) std::memcpy(to + i * n_lanes, &part_[i], sizeof(Part));
  }
  void store(T* to, T scale) const {
#pragma GCC unroll 64
    for (int i = 0; i < n_parts; ++i) {
      const Part x = scale * part_[i];
      std::memcpy(to + i * n_lanes, &x, sizeof x);
    }
  }
};

// Any width: the sum lives in the caller's memory, in the first-level cache.
template <class T> class Sum<T, 0> {
  T* sum_;
  int64_t width_;

  template <class E, class F> HPCREC_INLINE void add_terms(const E* __restrict row, F&& term) {
    T* __restrict sum = sum_;
    int64_t first = 0;
    if constexpr (std::is_same_v<E, Fp16>) {  // compilers do not find the instruction that reads 8 of them
      for (; first + 8 <= width_; first += 8) {
        typename Lanes<T, 8>::Part x, total;
        read_lanes<T, 8>(row + first, x);
        read_lanes<T, 8>(sum + first, total);
        term(x);
        total += x;
        std::memcpy(sum + first, &total, sizeof total);
      }
    }
#pragma omp simd
    for (int64_t d = first; d < width_; ++d) {
      T x = widened(row[d]);
      term(x);
      sum[d] += x;
    }
  }

 public:
  Sum(T* memory, int64_t width) : sum_(memory), width_(width) { std::memset(sum_, 0, sizeof(T) * width); }
  template <class E> void add(const E* row) {
    add_terms(row, [](auto&) {});
  }
  template <class E> void add(const E* row, T weight) {
    add_terms(row, [weight](auto& x) { x = weight * x; });
  }
  void add(const Sum& other) { add(other.sum_); }
  void store(T* to) const {
    if (to != sum_) std::memcpy(to, sum_, sizeof(T) * width_);
  }
  void store(T* to, T scale) const {
#pragma omp simd
    for (int64_t d = 0; d < width_; ++d) to[d] = scale * sum_[d];
  }
};

// Calls f with the width as a compile-time constant where there is a specialisation for it, else with 0. For doubles,
// which are for comparisons, there is none: they would take as long to compile again.
template <class T, class F> void with_width(int64_t width, F&& f) {
  if constexpr (std::is_same_v<T, double>) {
    f(std::integral_constant<int, 0>{});
  } else {
    switch (width) {
      case 1:
        return f(std::integral_constant<int, 1>{});
      case 2:
        return f(std::integral_constant<int, 2>{});
      case 4:
        return f(std::integral_constant<int, 4>{});
      case 8:
        return f(std::integral_constant<int, 8>{});
      case 16:
        return f(std::integral_constant<int, 16>{});
      case 32:
        return f(std::integral_constant<int, 32>{});
      case 64:
        return f(std::integral_constant<int, 64>{});
      case 128:
        return f(std::integral_constant<int, 128>{});
      default:
        return f(std::integral_constant<int, 0>{});
    }
  }
}

}  // namespace hpcrec

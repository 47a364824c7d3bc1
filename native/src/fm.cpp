// Sums of vectors and of their squares: one read of the vectors, which may lie sample by sample or feature by feature.
// Then many streams are read at once, more than a core follows by itself: so rows are asked for.
#include "hpcrec/fm.h"

#include <memory>

#include "hpcrec/parallel.h"
#include "hpcrec/row.h"

namespace hpcrec {
namespace {

template <class T> const T* row_of(const FmSums<T>& in, int64_t sample, int64_t feature) {
  return in.vectors.data + sample * in.vectors.sample_stride + feature * in.vectors.feature_stride;
}

// The sum of columns' squares: those square_lanes apart in order, then in halves. Overwrites them.
template <class T> T fold_squares(T* columns, int64_t width) {
  for (int64_t first = square_lanes; first < width; first += square_lanes) {
    const int64_t n = std::min(square_lanes, width - first);
#pragma omp simd
    for (int64_t d = 0; d < n; ++d) columns[d] += columns[first + d];
  }
  int64_t n = std::min(square_lanes, width), half = square_lanes / 2;
  for (; half > 0; half /= 2) {  // sums behind the width are zeros
#pragma omp simd
    for (int64_t d = 0; d < std::max<int64_t>(0, n - half); ++d) columns[d] += columns[half + d];
    n = std::min(n, half);
  }
  return columns[0];
}

// Sums of one sample's vectors and squares, in registers where the width is known.
template <class T, int W> struct Both {
  static constexpr int n_lanes = W * sizeof(T) < 32 ? W : 32 / sizeof(T);
  static constexpr int n_parts = W / n_lanes;
  using Part = typename Lanes<T, n_lanes>::Part;
  Part sum[n_parts], square[n_parts];

  Both(T*, T*, int64_t) {
#pragma GCC unroll 64
    for (int i = 0; i < n_parts; ++i) sum[i] = square[i] = Part{};
  }
  void add(const T* row) {
#pragma GCC unroll 64
    for (int i = 0; i < n_parts; ++i) {
      Part x;
      std::memcpy(&x, row + i * n_lanes, sizeof x);
      sum[i] += x;
      square[i] += x * x;
    }
  }
  void store(T* sums, T* columns) const {
    std::memcpy(sums, sum, sizeof sum);
    std::memcpy(columns, square, sizeof square);
  }
};

// Any width: in memory, in the first-level cache.
template <class T> struct Both<T, 0> {
  T *sum, *square;
  int64_t width;

  Both(T* sums, T* columns, int64_t d) : sum(sums), square(columns), width(d) {
    std::fill(sum, sum + width, T{0});
    std::fill(square, square + width, T{0});
  }
  void add(const T* __restrict row) {
    T* __restrict s = sum, * __restrict q = square;
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) {
      s[d] += row[d];
      q[d] += row[d] * row[d];
    }
  }
  void store(T*, T*) const {}
};

template <class T, int W> void sum_range(const FmSums<T>& in, Range mine, T* sums, T* squares) {
  const int64_t width = W ? W : in.width, ahead = std::max<int64_t>(1, rows_ahead<T>(width) / 4);
  const std::unique_ptr<T[]> columns(new T[width]);
  for (int64_t b = mine.first; b < mine.last; ++b) {
    const int64_t next = std::min(b + ahead, mine.last - 1);
    Both<T, W> both(sums + b * width, columns.get(), width);
    for (int64_t f = 0; f < in.n_features; ++f) {
      prefetch_row<W>(row_of(in, next, f), width);
      both.add(row_of(in, b, f));
    }
    both.store(sums + b * width, columns.get());
    squares[b] = fold_squares(columns.get(), width);
  }
}

// The samples of a tile have their gradients of the sums in the first-level cache, whatever feature is written.
template <class T> int64_t tile_samples(const FmSums<T>& in) {
  constexpr int64_t tile_bytes = 8192;
  if (in.vectors.feature_stride <= in.vectors.sample_stride) return 1;
  return std::max<int64_t>(1, tile_bytes / (in.width * static_cast<int64_t>(sizeof(T))));
}

template <class T, int W>
void spread_range(const FmSums<T>& in, Range mine, const T* sums_gradient, const T* squares_gradient,
                  const Strided<T>& gradient) {
  const int64_t width = W ? W : in.width, tile = tile_samples(in);
  for (int64_t first = mine.first; first < mine.last; first += tile) {
    const int64_t last = std::min(first + tile, mine.last);
    for (int64_t f = 0; f < in.n_features; ++f)
      for (int64_t b = first; b < last; ++b) {
        T* __restrict to = gradient.data + b * gradient.sample_stride + f * gradient.feature_stride;
        const T* __restrict own = sums_gradient + b * width;
        const T* __restrict row = row_of(in, b, f);
        const T twice = 2 * squares_gradient[b];
#pragma omp simd
        for (int64_t d = 0; d < width; ++d) to[d] = own[d] + twice * row[d];
      }
  }
}

// Calls f(W, range of samples), by teams.
template <class T, class F> void over_samples(const FmSums<T>& in, F&& f) {
  parallel_pieces(team(in.n_samples * in.n_features * in.width), [&](int piece, int pieces) {
    const Range mine = share(in.n_samples, piece, pieces);
    if (mine.first < mine.last) with_width<T>(in.width, [&](auto w) { f(w, mine); });
  });
}

}  // namespace

template <class T> void fm_sums(const FmSums<T>& in, T* sums, T* squares) {
  over_samples(in, [&](auto w, Range mine) { sum_range<T, decltype(w)::value>(in, mine, sums, squares); });
}

template <class T>
void fm_sums_backward(const FmSums<T>& in, const T* sums_gradient, const T* squares_gradient,
                      const Strided<T>& gradient) {
  over_samples(in, [&](auto w, Range mine) {
    spread_range<T, decltype(w)::value>(in, mine, sums_gradient, squares_gradient, gradient);
  });
}

template void fm_sums(const FmSums<float>&, float*, float*);
template void fm_sums(const FmSums<double>&, double*, double*);
template void fm_sums_backward(const FmSums<float>&, const float*, const float*, const Strided<float>&);
template void fm_sums_backward(const FmSums<double>&, const double*, const double*, const Strided<double>&);

}  // namespace hpcrec

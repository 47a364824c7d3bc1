// Dot products of all pairs: two small matrix products a sample, V V^T below its diagonal and, backwards, (G + G^T) V.
// A sample lies in the first-level cache; tiles of 4 rows by some vector registers are summed in registers.
//
// Each element is summed in one order that depends on shapes alone; a fused multiply-add rounds once where the machine
// has it (native/CMakeLists.txt), so bits differ between kinds of processors.
#include "hpcrec/interaction.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {

#ifdef __AVX__
constexpr int64_t vector_bytes = 32;
#else
constexpr int64_t vector_bytes = 16;
#endif
constexpr int tile_rows = 4;
// 4 x 4 sums, 4 operands and a factor: more than the 16 registers of AVX2.
#ifdef __AVX512VL__
constexpr int tile_vectors = 4;
#else
constexpr int tile_vectors = 3;
#endif

template <class T> struct Simd {
  static constexpr int lanes = vector_bytes / sizeof(T);
  typedef T Type __attribute__((vector_size(vector_bytes)));
};
// Rows come in tiles and in square blocks of vectors.
template <class T> constexpr int64_t row_step = Simd<T>::lanes > tile_rows ? Simd<T>::lanes : tile_rows;
template <class T> using Vec = typename Simd<T>::Type;

template <class T> inline int64_t round_up(int64_t n) {
  constexpr int64_t lanes = Simd<T>::lanes;
  return (n + lanes - 1) / lanes * lanes;
}

template <class V, class T> inline void load(V& v, const T* from) {
  std::memcpy(&v, from, sizeof v);
}
template <class V, class T> inline void store(T* to, const V& v) {
  std::memcpy(to, &v, sizeof v);
}

// Memory of one thread, cut into pieces that begin on a cache line.
template <class T> class Scratch {
  static constexpr int64_t line = 64 / sizeof(T);
  std::unique_ptr<T[]> memory_;
  T* next_;

 public:
  explicit Scratch(int64_t n, int pieces) : memory_(new T[n + (pieces + 1) * line]) {
    const auto past = reinterpret_cast<uintptr_t>(memory_.get()) / sizeof(T) % line;
    next_ = memory_.get() + (past ? line - past : 0);
  }
  T* take(int64_t n) {
    T* piece = next_;
    next_ += (n + line - 1) / line * line;
    std::fill(piece, piece + n, T(0));
    return piece;
  }
};

// Where a matrix's rows begin: the first one anywhere, the others one after the other.
template <class T> struct Rows {
  T* first;
  T* rest;
  int64_t width;
  T* operator[](int64_t i) const { return i == 0 ? first : rest + (i - 1) * width; }
};

// Sums of 4 rows by C vectors of columns, in registers.
template <class T, int C> class Tile {
  static constexpr int lanes = Simd<T>::lanes;
  Vec<T> sums_[tile_rows][C] = {};

 public:
  // Row r grows by f[r] times the row's columns.
  void add(const T* row, T f0, T f1, T f2, T f3) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      Vec<T> x;
      load(x, row + c * lanes);
      sums_[0][c] += f0 * x;
      sums_[1][c] += f1 * x;
      sums_[2][c] += f2 * x;
      sums_[3][c] += f3 * x;
    }
  }
  void store_to(T* const* out, int64_t column) const {
#pragma GCC unroll 4
    for (int r = 0; r < tile_rows; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) store(out[r] + column + c * lanes, sums_[r][c]);
  }
};

// Calls f(number of vectors, column) for the tiles that make columns [0, n_columns), a multiple of the lanes.
template <class T, class F> inline void over_columns(int64_t n_columns, F&& f) {
  constexpr int64_t lanes = Simd<T>::lanes;
  int64_t column = 0;
  for (; column + tile_vectors * lanes <= n_columns; column += tile_vectors * lanes)
    f(std::integral_constant<int, tile_vectors>{}, column);
  switch ((n_columns - column) / lanes) {
    case 1:
      return f(std::integral_constant<int, 1>{}, column);
    case 2:
      return f(std::integral_constant<int, 2>{}, column);
    case 3:
      return f(std::integral_constant<int, 3>{}, column);
  }
}

// The elements of a and b by number: those of b follow those of a.
template <int... I, class V> inline void pick(const V& a, const V& b, V& out, std::integer_sequence<int, I...>) {
#if defined(__clang__) || __GNUC__ >= 12
  out = __builtin_shufflevector(a, b, I...);
#else
  typedef decltype(a < b) Places;
  out = __builtin_shuffle(a, b, Places{I...});
#endif
}
template <int START, class V, int... I>
inline void interleave(const V& a, const V& b, V& out, std::integer_sequence<int, I...>) {
  pick(a, b, out, std::integer_sequence<int, (START + I / 2 + I % 2 * static_cast<int>(sizeof...(I)))...>{});
}

// Transposes a square block of vectors: a perfect shuffle of all its elements, as often as a row number has bits.
template <class T> inline void transpose_block(const T* const* from, int64_t column, T* to, int64_t to_width) {
  constexpr int lanes = Simd<T>::lanes;
  using Numbers = std::make_integer_sequence<int, lanes>;
  Vec<T> x[lanes], y[lanes];
  for (int i = 0; i < lanes; ++i) load(x[i], from[i] + column);
#pragma GCC unroll 4
  for (int turn = 1; turn < lanes; turn *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < lanes / 2; ++i) {
      interleave<0>(x[i], x[i + lanes / 2], y[2 * i], Numbers{});
      interleave<lanes / 2>(x[i], x[i + lanes / 2], y[2 * i + 1], Numbers{});
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) x[i] = y[i];
  }
  for (int i = 0; i < lanes; ++i) store(to + i * to_width, x[i]);
}

// The samples' vectors, one sample at a time: where they lie, or a copy filled with zeros up to whole registers.
template <class T> class Samples {
  Rows<const T> rows_{};
  T* copy_ = nullptr;

 public:
  const Vectors<T>& in;
  const int64_t n_vectors, width, padded_width, n_pairs, prefix;

  explicit Samples(const Vectors<T>& vectors)
      : in(vectors),
        n_vectors(in.n_block + (in.first ? 1 : 0)),
        width(in.width),
        padded_width(round_up<T>(in.width)),
        n_pairs(n_vectors * (n_vectors - 1) / 2),
        prefix(in.first ? in.width : 0) {}
  bool padded() const { return width != padded_width; }
  int64_t copy_size() const { return padded() ? n_vectors * padded_width : 0; }
  void use_copy(T* memory) { copy_ = memory; }

  // Rows of sample b in a pair of arrays like the input's.
  template <class U> Rows<U> place(U* first, U* block, int64_t b) const {
    U* start = block + b * in.n_block * width;
    return first ? Rows<U>{first + b * width, start, width} : Rows<U>{start, start + width, width};
  }
  const Rows<const T>& open(int64_t b) {
    rows_ = place(in.first, in.block, b);
    if (padded()) {
      for (int64_t i = 0; i < n_vectors; ++i) std::memcpy(copy_ + i * padded_width, rows_[i], sizeof(T) * width);
      rows_ = {copy_, copy_ + padded_width, padded_width};
    }
    return rows_;
  }
};

// The first vector, then the rows of the square below its diagonal.
template <class T> void write_triangle(const Samples<T>& samples, const T* square, int64_t padded, T* to, int64_t b) {
  constexpr int64_t lanes = Simd<T>::lanes;
  if (samples.prefix) std::memcpy(to, samples.in.first + b * samples.prefix, sizeof(T) * samples.prefix);
  to += samples.prefix;
  const T* const end = to + samples.n_pairs;
  for (int64_t i = 1; i < samples.n_vectors; to += i++) {
    const T* from = square + i * padded;
    if (to + round_up<T>(i) <= end)  // whole registers: what they write too much the next rows write again
      for (int64_t j = 0; j < i; j += lanes) std::memcpy(to + j, from + j, vector_bytes);
    else std::memcpy(to, from, sizeof(T) * i);
  }
}

template <class T> void forward_range(const Vectors<T>& in, Range mine, T* out) {
  constexpr int64_t lanes = Simd<T>::lanes;
  Samples<T> samples(in);
  const int64_t n = samples.n_vectors, width = samples.padded_width;
  const int64_t padded = (n + row_step<T> - 1) / row_step<T> * row_step<T>;
  Scratch<T> scratch(samples.copy_size() + width + padded * width + padded * padded, 4);
  samples.use_copy(scratch.take(samples.copy_size()));
  T* const zeros = scratch.take(width);
  T* const transposed = scratch.take(width * padded);
  T* const square = scratch.take(padded * padded);
  std::vector<const T*> row(padded, zeros);
  for (int64_t b = mine.first; b < mine.last; ++b) {
    const Rows<const T>& vectors = samples.open(b);
    for (int64_t i = 0; i < n; ++i) row[i] = vectors[i];
    for (int64_t i = 0; i < n; i += lanes)
      for (int64_t d = 0; d < width; d += lanes) transpose_block(&row[i], d, transposed + d * padded + i, padded);
    for (int64_t i = 0; i < n; i += tile_rows) {
      const T *a0 = row[i], *a1 = row[i + 1], *a2 = row[i + 2], *a3 = row[i + 3];
      T* const to = square + i * padded;
      T* const to_rows[] = {to, to + padded, to + 2 * padded, to + 3 * padded};
      over_columns<T>(round_up<T>(std::min(i + tile_rows, n) - 1), [&](auto count, int64_t column) {
        Tile<T, decltype(count)::value> tile;
        const T* x = transposed + column;
        for (int64_t d = 0; d < width; ++d, x += padded) tile.add(x, a0[d], a1[d], a2[d], a3[d]);
        tile.store_to(to_rows, column);
      });
    }
    write_triangle(samples, square, padded, out + b * (samples.prefix + samples.n_pairs), b);
  }
}

// Gradients of the vectors of one sample: row i is the sum over k of vectors[k] times the gradient of product (i, k),
// which is g[k] of its row of the triangle for k < i, and element i of row k for k > i.
template <class T>
void backward_sample(const T* triangle, const Rows<const T>& vectors, int64_t n, const T* zeros, T* spare,
                     const Rows<T>& results) {
  for (int64_t i = 0; i < n; i += tile_rows) {
    const T* g[tile_rows];
    T* to[tile_rows];
    T diagonal[tile_rows][tile_rows] = {};
    for (int r = 0; r < tile_rows; ++r) {
      g[r] = i + r < n ? triangle + (i + r) * (i + r - 1) / 2 : zeros;
      to[r] = i + r < n ? results[i + r] : spare;
      for (int q = 0; q < r; ++q) diagonal[r][q] = diagonal[q][r] = g[r][i + q];
    }
    const int64_t own_end = std::min(i + tile_rows, n);
    over_columns<T>(vectors.width, [&](auto count, int64_t column) {
      Tile<T, decltype(count)::value> tile;
      const T *x = vectors.first + column, *rest = vectors.rest + column;
      int64_t k = 0;
      auto next = [&] { x = k++ == 0 ? rest : x + vectors.width; };
      for (; k < i; next()) tile.add(x, g[0][k], g[1][k], g[2][k], g[3][k]);
      for (; k < own_end; next()) {
        const T* f = diagonal[k - i];
        tile.add(x, f[0], f[1], f[2], f[3]);
      }
      for (const T* f = triangle + k * (k - 1) / 2 + i; k < n; f += k, next()) tile.add(x, f[0], f[1], f[2], f[3]);
      tile.store_to(to, column);
    });
  }
}

template <class T>
void backward_range(const Vectors<T>& in, Range mine, const T* gradient, T* first_gradient, T* block_gradient) {
  Samples<T> samples(in);
  const int64_t n = samples.n_vectors, width = samples.padded_width;
  Scratch<T> scratch(2 * samples.copy_size() + width + n + tile_rows, 4);
  samples.use_copy(scratch.take(samples.copy_size()));
  T* const copy = scratch.take(samples.copy_size());
  T* const spare = scratch.take(width);  // for rows past the last
  const T* const zeros = scratch.take(n + tile_rows);
  for (int64_t b = mine.first; b < mine.last; ++b) {
    const T* from = gradient + b * (samples.prefix + samples.n_pairs);
    const Rows<T> results = samples.place(first_gradient, block_gradient, b);
    const Rows<T> sums = samples.padded() ? Rows<T>{copy, copy + width, width} : results;
    backward_sample(from + samples.prefix, samples.open(b), n, zeros, spare, sums);
    if (samples.padded())
      for (int64_t i = 0; i < n; ++i) std::memcpy(results[i], sums[i], sizeof(T) * samples.width);
    for (int64_t d = 0; d < samples.prefix; ++d) results.first[d] += from[d];
  }
}

template <class T, class F> void over_samples(const Vectors<T>& in, F&& f) {
  const int64_t n = in.n_block + (in.first ? 1 : 0);
  parallel_pieces(team(in.n_samples * n * in.width), [&](int piece, int pieces) {
    const Range mine = share(in.n_samples, piece, pieces);
    if (mine.first < mine.last) f(mine);
  });
}

}  // namespace

template <class T> void dot_interaction(const Vectors<T>& in, T* out) {
  over_samples(in, [&](Range mine) { forward_range(in, mine, out); });
}

template <class T>
void dot_interaction_backward(const Vectors<T>& in, const T* gradient, T* first_gradient, T* block_gradient) {
  over_samples(in, [&](Range mine) { backward_range(in, mine, gradient, first_gradient, block_gradient); });
}

template void dot_interaction(const Vectors<float>&, float*);
template void dot_interaction(const Vectors<double>&, double*);
template void dot_interaction_backward(const Vectors<float>&, const float*, float*, float*);
template void dot_interaction_backward(const Vectors<double>&, const double*, double*, double*);

}  // namespace hpcrec

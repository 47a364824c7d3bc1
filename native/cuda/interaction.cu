// Dot products of all pairs of a sample's vectors, and their gradient, on the device.
//
// A warp takes a sample, and of its products a square of 32 x 32: all, where it has no more than 32 vectors. Vectors
// come through shared memory, as many columns at a time as 128 bytes hold; each lane sums two tiles of 4 x 4 in
// registers. A fused multiply-add rounds once, as the host's kernel does where its machine has one. The order of sums
// depends on shapes alone.
#include "interaction.h"

#include <cmath>

#include "lanes.h"

namespace hpcrec::cuda {
namespace {

constexpr int square = 32;                // rows that a warp works on at a time
constexpr int tile = 4;                   // rows and columns of products that a lane sums
constexpr int tiles = square / tile;      // along a side
constexpr unsigned sample_threads = 128;  // of a block: what shared memory has room for
constexpr int samples_a_block = sample_threads / all_lanes;
constexpr int loads_ahead = 8;
// Blocks that a multiprocessor has registers for at once: as many as spill none with so many sums each.
template <class T> constexpr int forward_blocks = sizeof(T) == 8 ? 2 : 5;
template <class T> constexpr int backward_blocks = 3;
template <class T> constexpr int chunk_columns = 128 / sizeof(T);
template <class T> constexpr int chunk_stride = chunk_columns<T> + 1;  // so that lanes of other rows hit other banks
constexpr int square_stride = square + 1;

// Rows of a sample: one of `first`, where that is given, then those of `block`.
template <class T> struct Sample {
  T* first;
  T* rest;
  int64_t width;
  __device__ T* row(int64_t i) const { return i == 0 ? first : rest + (i - 1) * width; }
};
template <class T>
__device__ __forceinline__ Sample<T> sample_of(T* first, T* block, int64_t n_block, int64_t width, int64_t b) {
  T* rest = block + b * n_block * width;
  return first ? Sample<T>{first + b * width, rest, width} : Sample<T>{rest, rest + width, width};
}

// Brings rows [first, first + 32) of a sample, columns [column, column + chunk), into memory [32, chunk_stride]; zeros
// where there are none. A lane has a column; doubles have half as many, and two rows at a time.
template <class T>
__device__ void bring_rows(const Sample<const T>& from, int64_t n, int64_t first, int64_t column, unsigned lane,
                           T* to) {
  constexpr int columns = chunk_columns<T>, step = static_cast<int>(all_lanes) / columns;
  const int own_row = static_cast<int>(lane) / columns, own_column = static_cast<int>(lane) % columns;
  const bool inside = column + own_column < from.width;
#pragma unroll 1
  for (int r = own_row; r < square; r += step * loads_ahead) {
    T x[loads_ahead];
#pragma unroll
    for (int i = 0; i < loads_ahead; ++i) {
      const int64_t row = first + r + i * step;
      x[i] = inside && row < n ? from.row(row)[column + own_column] : T{0};
    }
#pragma unroll
    for (int i = 0; i < loads_ahead; ++i) to[(r + i * step) * chunk_stride<T> + own_column] = x[i];
  }
}

// Adds the products of rows `a` and rows `b`, four each, over a chunk's columns.
template <class T> __device__ __forceinline__ void add_products(const T* a, const T* b, T (&sums)[tile][tile]) {
#pragma unroll 4
  for (int d = 0; d < chunk_columns<T>; ++d) {
    T x[tile], y[tile];
#pragma unroll
    for (int i = 0; i < tile; ++i) {
      x[i] = a[i * chunk_stride<T> + d];
      y[i] = b[i * chunk_stride<T> + d];
    }
#pragma unroll
    for (int i = 0; i < tile; ++i) {
#pragma unroll
      for (int j = 0; j < tile; ++j) sums[i][j] = std::fma(x[i], y[j], sums[i][j]);
    }
  }
}

// The tile of a square that is number t: of all of them, or of those on and below the diagonal.
struct Place {
  int row, column;
};
__device__ __forceinline__ Place place_of(int t, bool triangle) {
  if (!triangle) return {t / tiles, t % tiles};
  int row = 0;
  while (t > row) t -= ++row;
  return {row, t};
}

// Grid rows are squares of products on and below the diagonal.
template <class T, bool ALONE>
__global__ void __launch_bounds__(sample_threads, forward_blocks<T>)
    multiply_pairs(Vectors<T> in, int64_t n, int64_t prefix, T* out) {
  constexpr int chunk = square * chunk_stride<T>, area = ALONE ? chunk : 2 * chunk;
  constexpr int size = area > square * square_stride ? area : square * square_stride;
  __shared__ T memory[samples_a_block * size];
  const unsigned lane = threadIdx.x % all_lanes, all = 0xffffffffu;
  const int64_t b = this_thread() / all_lanes;
  if (b >= in.n_samples) return;
  T* const own = memory + threadIdx.x / all_lanes * size;
  const Place where = ALONE ? Place{0, 0} : [&] {
    Place found{0, static_cast<int>(blockIdx.y)};
    while (found.column > found.row) found.column -= ++found.row;
    return found;
  }();
  const int64_t row = static_cast<int64_t>(where.row) * square, column = static_cast<int64_t>(where.column) * square;
  const bool triangle = row == column;
  const auto sample = sample_of(in.first, in.block, in.n_block, in.width, b);
  const T* const others = triangle ? own : own + chunk;

  const int64_t n_rows = n - row < square ? n - row : square;
  const int side = static_cast<int>((n_rows + tile - 1) / tile);
  const int n_tiles = triangle ? side * (side + 1) / 2 : tiles * side;
  T sums[2][tile][tile];
  Place places[2];
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    places[s] = place_of(static_cast<int>(lane) + s * static_cast<int>(all_lanes), triangle);
#pragma unroll
    for (int i = 0; i < tile * tile; ++i) sums[s][i / tile][i % tile] = T{0};
  }
  for (int64_t d = 0; d < in.width; d += chunk_columns<T>) {
    __syncwarp(all);  // all have read what is there
    bring_rows<T>(sample, n, row, d, lane, own);
    if (!triangle) bring_rows<T>(sample, n, column, d, lane, own + chunk);
    __syncwarp(all);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (static_cast<int>(lane) + s * static_cast<int>(all_lanes) >= n_tiles) break;
      add_products<T>(own + places[s].row * tile * chunk_stride<T>, others + places[s].column * tile * chunk_stride<T>,
                      sums[s]);
    }
  }
  // Through memory, so that a row's products are written side by side.
  __syncwarp(all);
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    if (static_cast<int>(lane) + s * static_cast<int>(all_lanes) >= n_tiles) break;
#pragma unroll
    for (int i = 0; i < tile; ++i) {
#pragma unroll
      for (int j = 0; j < tile; ++j)
        own[(places[s].row * tile + i) * square_stride + places[s].column * tile + j] = sums[s][i][j];
    }
  }
  __syncwarp(all);
  T* const to = out + b * (prefix + n * (n - 1) / 2);
  for (int64_t i = 0; i < n_rows; ++i) {
    const int64_t j = column + lane, whole = row + i;
    if (j < whole) to[prefix + whole * (whole - 1) / 2 + j] = own[i * square_stride + lane];
  }
  if (blockIdx.y == 0)
    for (int64_t d = lane; d < prefix; d += all_lanes) to[d] = sample.first[d];
}

// Grid rows are 32 rows of gradients: row i is the sum over k of vectors[k] times the gradient of product (i, k).
template <class T>
__global__ void __launch_bounds__(sample_threads, backward_blocks<T>)
    spread_pairs(Vectors<T> in, int64_t n, int64_t prefix, const T* gradient, T* first_gradient, T* block_gradient) {
  constexpr int chunk = square * chunk_stride<T>, columns = chunk_columns<T>, across = columns / tile;
  constexpr int rounds = tiles * across / static_cast<int>(all_lanes);
  constexpr int factors_size = sizeof(T) == 8 ? square * (square / 2 + 1) : square * square_stride;
  __shared__ T memory[samples_a_block * (chunk + factors_size)];
  const unsigned lane = threadIdx.x % all_lanes, all = 0xffffffffu;
  const int64_t b = this_thread() / all_lanes;
  if (b >= in.n_samples) return;
  // Doubles take twice the room: half as many rows of vectors at a time.
  constexpr int depth = sizeof(T) == 8 ? square / 2 : square, depth_stride = depth + 1;
  T* const vectors = memory + threadIdx.x / all_lanes * (chunk + factors_size);
  T* const factors = vectors + chunk;  // [32, depth_stride]
  const int64_t row = static_cast<int64_t>(blockIdx.y) * square;
  const auto sample = sample_of(in.first, in.block, in.n_block, in.width, b);
  const auto result = sample_of(first_gradient, block_gradient, in.n_block, in.width, b);
  const T* const from = gradient + b * (prefix + n * (n - 1) / 2);
  const bool once = n <= depth;
  for (int64_t d = 0; d < in.width; d += columns) {
    T sums[rounds][tile][tile];
#pragma unroll
    for (int s = 0; s < rounds * tile * tile; ++s) sums[s / (tile * tile)][s / tile % tile][s % tile] = T{0};
    for (int64_t k = 0; k < n; k += depth) {
      __syncwarp(all);  // all have read what is there
      bring_rows<T>(sample, n, k, d, lane, vectors);
      if (!once || d == 0) {
        const int64_t other = k + lane;  // a lane has a column of the factors
#pragma unroll 4
        for (int i = 0; i < square; ++i) {
          const int64_t mine = row + i, high = mine > other ? mine : other, low = mine > other ? other : mine;
          const bool there = high < n && high != low && static_cast<int>(lane) < depth;
          const T factor = there ? from[prefix + high * (high - 1) / 2 + low] : T{0};
          if (static_cast<int>(lane) < depth) factors[i * depth_stride + lane] = factor;
        }
      }
      __syncwarp(all);
      const int here = static_cast<int>(n - k < depth ? n - k : depth);
#pragma unroll
      for (int s = 0; s < rounds; ++s) {
        const int t = static_cast<int>(lane) + s * static_cast<int>(all_lanes);
        const T* f = factors + t / across * tile * depth_stride;
        const T* x = vectors + t % across;
#pragma unroll 2
        for (int i = 0; i < here; ++i, ++f, x += chunk_stride<T>) {
          T y[tile];
#pragma unroll
          for (int c = 0; c < tile; ++c) y[c] = x[c * across];
#pragma unroll
          for (int r = 0; r < tile; ++r) {
            const T factor = f[r * depth_stride];
#pragma unroll
            for (int c = 0; c < tile; ++c) sums[s][r][c] = std::fma(factor, y[c], sums[s][r][c]);
          }
        }
      }
    }
#pragma unroll
    for (int s = 0; s < rounds; ++s) {
      const int t = static_cast<int>(lane) + s * static_cast<int>(all_lanes);
#pragma unroll
      for (int r = 0; r < tile; ++r) {
        const int64_t i = row + t / across * tile + r;
#pragma unroll
        for (int c = 0; c < tile; ++c) {
          const int64_t column = d + t % across + c * across;
          if (i < n && column < in.width)
            result.row(i)[column] = i == 0 && prefix ? from[column] + sums[s][r][c] : sums[s][r][c];
        }
      }
    }
  }
}

template <class T> int64_t vectors_of(const Vectors<T>& in) {
  return in.n_block + (in.first ? 1 : 0);
}
int64_t blocks_of_samples(int64_t n) {
  return (n + samples_a_block - 1) / samples_a_block;
}

}  // namespace

template <class T> void dot_interaction(const Vectors<T>& in, T* out, const Queue& queue) {
  const int64_t n = vectors_of(in), prefix = in.first ? in.width : 0, squares = (n + square - 1) / square;
  const int64_t blocks = blocks_of_samples(in.n_samples);
  if (squares == 1)
    launch("dot_interaction", multiply_pairs<T, true>, blocks, 1, sample_threads, queue.stream, in, n, prefix, out);
  else
    launch("dot_interaction", multiply_pairs<T, false>, blocks, static_cast<unsigned>(squares * (squares + 1) / 2),
           sample_threads, queue.stream, in, n, prefix, out);
}

template <class T>
void dot_interaction_backward(const Vectors<T>& in, const T* gradient, T* first_gradient, T* block_gradient,
                              const Queue& queue) {
  const int64_t n = vectors_of(in), prefix = in.first ? in.width : 0, squares = (n + square - 1) / square;
  launch("dot_interaction_backward", spread_pairs<T>, blocks_of_samples(in.n_samples), static_cast<unsigned>(squares),
         sample_threads, queue.stream, in, n, prefix, gradient, first_gradient, block_gradient);
}

template void dot_interaction(const Vectors<float>&, float*, const Queue&);
template void dot_interaction(const Vectors<double>&, double*, const Queue&);
template void dot_interaction_backward(const Vectors<float>&, const float*, float*, float*, const Queue&);
template void dot_interaction_backward(const Vectors<double>&, const double*, double*, double*, const Queue&);

}  // namespace hpcrec::cuda

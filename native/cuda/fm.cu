// Sums of pooled vectors and of their squares on the device: a group of lanes takes a sample and reads it once.
#include "fm.h"

#include "lanes.h"

namespace hpcrec::cuda {
namespace {

constexpr int features_ahead = 8;   // vectors asked for before the first of them is added
constexpr int gradients_ahead = 4;  // vectors asked for before the gradient of the first is written

// A lane's sums of squares of columns that lie square_lanes apart. Where a group has 32 lanes, they have all of
// square_lanes; narrower vectors have no more columns.
template <int N> constexpr int own_squares = static_cast<int>(square_lanes) / (static_cast<int>(all_lanes) * N);

template <class T, int N>
__global__ void __launch_bounds__(block_threads, 1)
    sum_samples(FmSums<T> c, Layout layout, int64_t n_tiles, T* sums, T* squares) {
  const Member me(layout);
  const int64_t b = me.group;
  if (b >= c.n_samples) return;
  const T* sample = c.vectors.data + b * c.vectors.sample_stride;
  Pack<T, N> own[own_squares<N>];
#pragma unroll
  for (int a = 0; a < own_squares<N>; ++a) own[a] = zeros<T, N>();
  for (int64_t tile = 0; tile < n_tiles; tile += own_squares<N>) {
#pragma unroll
    for (int a = 0; a < own_squares<N>; ++a) {
      const int64_t column = ((tile + a) * layout.lanes + me.lane) * N;
      if (column >= c.width) continue;
      Pack<T, N> sum = zeros<T, N>(), square = zeros<T, N>();
      for (int64_t f = 0; f < c.n_features; f += features_ahead) {
        Pack<T, N> x[features_ahead];
#pragma unroll
        for (int i = 0; i < features_ahead; ++i)
          if (f + i < c.n_features) x[i] = load<T, N>(sample + (f + i) * c.vectors.feature_stride + column);
#pragma unroll
        for (int i = 0; i < features_ahead; ++i) {
          if (f + i >= c.n_features) break;
          add(sum, x[i]);
#pragma unroll
          for (int j = 0; j < N; ++j) square.x[j] += x[i].x[j] * x[i].x[j];
        }
      }
      store_anywhere<T, N>(sums + b * c.width + column, sum);
      add(own[a], square);
    }
  }
  // Halves: of a lane's sums, of the lanes, of a pack. Those that the vector has not are zeros.
#pragma unroll
  for (int half = own_squares<N> / 2; half > 0; half /= 2) {
#pragma unroll
    for (int a = 0; a < half; ++a) add(own[a], own[a + half]);
  }
  for (unsigned half = layout.lanes / 2; half > 0; half /= 2) {
#pragma unroll
    for (int j = 0; j < N; ++j)
      own[0].x[j] +=
          __shfl_sync(me.mask, own[0].x[j], static_cast<int>(me.lane ^ half), static_cast<int>(layout.lanes));
  }
#pragma unroll
  for (int half = N / 2; half > 0; half /= 2) {
#pragma unroll
    for (int j = 0; j < half; ++j) own[0].x[j] += own[0].x[j + half];
  }
  if (me.lane == 0) squares[b] = own[0].x[0];
}

template <class T, int N>
__global__ void __launch_bounds__(block_threads, 1)
    spread_samples(FmSums<T> c, const T* sums_gradient, const T* squares_gradient, Strided<T> gradient, Layout layout) {
  const Member me(layout);
  const int64_t b = me.group, column = (static_cast<int64_t>(blockIdx.y) * layout.lanes + me.lane) * N;
  if (b >= c.n_samples || column >= c.width) return;
  const T* sample = c.vectors.data + b * c.vectors.sample_stride + column;
  T* to = gradient.data + b * gradient.sample_stride + column;
  const Pack<T, N> own = load_anywhere<T, N>(sums_gradient + b * c.width + column);
  const T twice = 2 * squares_gradient[b];
  for (int64_t f = 0; f < c.n_features; f += gradients_ahead) {
    Pack<T, N> x[gradients_ahead];
#pragma unroll
    for (int i = 0; i < gradients_ahead; ++i)
      if (f + i < c.n_features) x[i] = load<T, N>(sample + (f + i) * c.vectors.feature_stride);
#pragma unroll
    for (int i = 0; i < gradients_ahead; ++i) {
      if (f + i >= c.n_features) break;
      Pack<T, N> y = own;
      add(y, x[i], twice);
      store<T, N>(to + (f + i) * gradient.feature_stride, y);
    }
  }
}

template <class T> bool packable_vectors(const T* data, int64_t sample_stride, int64_t feature_stride, int64_t width) {
  constexpr int64_t pack = most_packed<T>;
  return packable(data, width, sizeof(T)) && sample_stride % pack == 0 && feature_stride % pack == 0;
}

template <class T, int N> void sum_with(const FmSums<T>& in, T* sums, T* squares, const Queue& queue) {
  const Layout layout = layout_of(in.width, N);
  const int64_t groups = layout.groups(block_threads);
  launch("fm_sums", sum_samples<T, N>, (in.n_samples + groups - 1) / groups, 1, block_threads, queue.stream, in, layout,
         static_cast<int64_t>(tiles_of(layout, N)), sums, squares);
}

template <class T, int N>
void spread_with(const FmSums<T>& in, const T* sums_gradient, const T* squares_gradient, const Strided<T>& gradient,
                 const Queue& queue) {
  const Layout layout = layout_of(in.width, N);
  const int64_t groups = layout.groups(block_threads);
  launch("fm_sums_backward", spread_samples<T, N>, (in.n_samples + groups - 1) / groups, tiles_of(layout, N),
         block_threads, queue.stream, in, sums_gradient, squares_gradient, gradient, layout);
}

}  // namespace

template <class T> void fm_sums(const FmSums<T>& in, T* sums, T* squares, const Queue& queue) {
  const auto& v = in.vectors;
  if (packable_vectors(v.data, v.sample_stride, v.feature_stride, in.width))
    sum_with<T, most_packed<T>>(in, sums, squares, queue);
  else sum_with<T, 1>(in, sums, squares, queue);
}

template <class T>
void fm_sums_backward(const FmSums<T>& in, const T* sums_gradient, const T* squares_gradient,
                      const Strided<T>& gradient, const Queue& queue) {
  const auto& v = in.vectors;
  if (packable_vectors(v.data, v.sample_stride, v.feature_stride, in.width) &&
      packable_vectors<T>(gradient.data, gradient.sample_stride, gradient.feature_stride, in.width))
    spread_with<T, most_packed<T>>(in, sums_gradient, squares_gradient, gradient, queue);
  else spread_with<T, 1>(in, sums_gradient, squares_gradient, gradient, queue);
}

template void fm_sums(const FmSums<float>&, float*, float*, const Queue&);
template void fm_sums(const FmSums<double>&, double*, double*, const Queue&);
template void fm_sums_backward(const FmSums<float>&, const float*, const float*, const Strided<float>&, const Queue&);
template void fm_sums_backward(const FmSums<double>&, const double*, const double*, const Strided<double>&,
                               const Queue&);

}  // namespace hpcrec::cuda

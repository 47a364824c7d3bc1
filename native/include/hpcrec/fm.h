// Sums of pooled vectors and of their squares, the partial result of a factorisation machine, and their gradient.
// Shapes: B samples, F features, D width.
#pragma once
#include <cstdint>

namespace hpcrec {

// Columns d, d + 128, ... of the squares' sums are added in order, then the sums in halves.
constexpr int64_t square_lanes = 128;

// Vectors [B, F, D] that lie in whatever order: strides in elements; that of the columns is 1.
template <class T> struct Strided {
  T* data;
  int64_t sample_stride, feature_stride;
};

template <class T> struct FmSums {
  Strided<const T> vectors;
  int64_t n_samples, n_features, width;
};

// sums [B, D], squares [B]; features are added in order.
template <class T> void fm_sums(const FmSums<T>& in, T* sums, T* squares);
// gradient = sums_gradient + (2 squares_gradient) vectors
template <class T>
void fm_sums_backward(const FmSums<T>& in, const T* sums_gradient, const T* squares_gradient,
                      const Strided<T>& gradient);

}  // namespace hpcrec

// Dot products of all pairs of a sample's vectors. Shapes: B samples, N vectors a sample, D width, P = N (N - 1) / 2.
#pragma once
#include <cstdint>

namespace hpcrec {

// Vectors of a sample: one of `first`, where that is given, then those of `block`. N = n_block + (first ? 1 : 0).
template <class T> struct Vectors {
  const T* first;  // [n_samples, width] or null
  const T* block;  // [n_samples, n_block, width]
  int64_t n_samples, n_block, width;
};

// out [B, D + P], or [B, P] without `first`: the first vector, then the products (1,0), (2,0), (2,1), (3,0), ...
template <class T> void dot_interaction(const Vectors<T>& in, T* out);
// Gradients of the vectors from that of `out`; first_gradient is null where in.first is.
template <class T>
void dot_interaction_backward(const Vectors<T>& in, const T* gradient, T* first_gradient, T* block_gradient);

}  // namespace hpcrec

// Bags pooled by max, and where its gradient goes. Shapes: N rows, D width, K ids, V vectors.
#pragma once
#include <cstdint>

namespace hpcrec {

// Rows of E, float or half, are compared as T.
template <class T, class E = T> struct Largest {
  const E* rows;             // [n_rows, width]
  const int64_t* index;      // [n_ids]
  const int64_t* offsets;    // [n_vectors + 1]
  const int64_t* out_start;  // [n_vectors] or null
  T* out;                    // [out_size]
  int32_t* winners;          // [n_vectors, width] or null
  int64_t n_rows, width, n_ids, n_vectors, out_size;
};

template <class T> struct LargestBackward {
  const int32_t* winners;       // [n_vectors, width]
  const int64_t* offsets;       // [n_vectors + 1]
  const T* gradients;           // [gradients_size]
  const int64_t* source_start;  // [n_vectors] or null
  T* out;                       // [n_ids, width]
  int64_t width, n_ids, n_vectors, gradients_size;
};

template <class T, class E> void pooled_max(const Largest<T, E>& call);
template <class T> void pooled_max_backward(const LargestBackward<T>& call);

}  // namespace hpcrec

// Moving rows: pooled gather and vector copy. Shapes: N rows, D width, K ids, V vectors.
// Beside a table there may be one of width 1 that is asked for the same rows: both are read in one pass.
#pragma once
#include <cstdint>

namespace hpcrec {

// Rows of E, float or half, are summed as T.
template <class T, class E = T> struct Gather {
  const E* rows;             // [n_rows, width]
  const int64_t* index;      // [n_ids]
  const int64_t* offsets;    // [n_vectors + 1]
  const int64_t* out_start;  // [n_vectors] or null
  const T* weights;          // [n_ids] or null
  const T* scale;            // [n_vectors] or null
  T* out;                    // [out_size]
  int64_t n_rows, width, n_ids, n_vectors, out_size;
  const T* beside;              // [n_beside] or null
  const int64_t* beside_start;  // [n_vectors], into out
  int64_t n_beside;
};

template <class T> struct Copy {
  const T* source;              // [source_size]
  T* target;                    // [target_size]
  const int64_t* source_start;  // [n_vectors] or null
  const int64_t* target_start;  // [n_vectors] or null
  const T* scale;               // [n_vectors] or null
  int64_t n_vectors, width, source_size, target_size;
  bool accumulate;
};

template <class T, class E> void pooled_gather(const Gather<T, E>& call);
template <class T> void copy_vectors(const Copy<T>& call);

}  // namespace hpcrec

// Learning: gradients of occurrences summed by row, and applied. Shapes: N rows, D width, K occurrences, U unique rows.
// Each occurrence names its source, which has a gradient and may have a weight: a position, or a bag.
#pragma once
#include <cstdint>

#include "hpcrec/half_rows.h"

namespace hpcrec {

// Occurrences of one sum: long sums are cut into blocks of this many, so that one hot row can occupy every thread.
constexpr int64_t block_size = 128;

template <class T> struct Occurrences {
  const int64_t* segments;      // [n_unique + 1]
  const int64_t* order;         // [n_occurrences], sources
  const int64_t* source_start;  // [n_sources]
  const T* weights;             // [n_sources] or null
  const T* gradients;           // [gradients_size]
  int64_t n_unique, n_occurrences, n_sources, gradients_size, width;
  const int64_t* beside_start;  // [n_sources], of the gradients of a table of width 1 beside; or null
};

// Rows are in an array of T, or are HalfRows, which are computed with as T.
template <class T, class Rows = T*> struct Target {
  Rows rows;              // [n_rows, width]
  const int64_t* unique;  // [n_unique], distinct
  int64_t n_rows, n_unique, width;
};

enum class Rule { sgd, adagrad, rowwise_adagrad, adam };

// What an optimizer needs; which of it is used depends on the rule.
template <class T> struct Learning {
  Rule rule;
  T rate, eps, rest1, rest2, bound, total_width;  // rate: lr, or Adam's step size; rest: 1 - beta
  T* state1;                                      // accumulator or exp_avg
  T* state2;                                      // exp_avg_sq
  const T* norm;                                  // [n_unique] or null
};

// What the merged gradients of rows are sums of: of how many steps each, and the sum of these steps' squares, of the
// shape of the rule's accumulator.
template <class T> struct Sums {
  const int64_t* ticks;  // [n_unique], 1 and more
  const T* squares;      // [n_unique] or [n_unique, width]
};

template <class T> void merge(const Occurrences<T>& from, T* merged);
template <class T> void squared_norms(const T* merged, int64_t n, int64_t width, T* out);
template <class T> void update(const Target<T>& target, const T* merged, const Learning<T>& how);
// By the Adagrads.
template <class T>
void update_sums(const Target<T>& target, const T* merged, const Learning<T>& how, const Sums<T>& of);
void update_sums(const Target<float, HalfRows>& target, const float* merged, const Learning<float>& how,
                 const Sums<float>& of);
template <class T> void merge_update(const Target<T>& target, const Occurrences<T>& from, const Learning<T>& how);
void update(const Target<float, HalfRows>& target, const float* merged, const Learning<float>& how);
void merge_update(const Target<float, HalfRows>& target, const Occurrences<float>& from, const Learning<float>& how);
// The same rows of two tables, the second of width 1, by the same rule.
template <class T>
void merge_update(const Target<T>& target, const Occurrences<T>& from, const Learning<T>& how, const Target<T>& beside,
                  const Learning<T>& beside_how);

}  // namespace hpcrec

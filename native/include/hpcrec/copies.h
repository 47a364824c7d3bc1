// Copies of rows on a dense rank: what is read of them, gradients that are added up, and what is pushed.
// What each call does is written in hpcrec/kernels/reference_copies.py. Shapes: N copies, K rows of a step, D width.
#pragma once
#include <cstdint>

#include "hpcrec/learn.h"

namespace hpcrec {

// Of a copy: half a cache line. As `RECORD` in hpcrec/kernels/reference_copies.py.
struct CopyRecord {
  double scale;       // of learning rates, by which its own ticks are shown
  int32_t ticks;      // of its own that are not pushed
  int32_t at, since;  // steps of its values, and of the first of these ticks
  int32_t bundle;
  int32_t has_values;  // 0: its row is to be sent
  int32_t unused;
};
static_assert(sizeof(CopyRecord) == 32);

// Copies and those that a step is about: `slots` are distinct, and may be -1 (no copy) where a call says so.
struct CopyPlaces {
  CopyRecord* records;   // [n_copies]
  const int64_t* slots;  // [n]
  int64_t n_copies, n;
};

// Of one table: how its copies learn, by bundle, and their values.
template <class T> struct CopyTable {
  Rule rule;                       // sgd, adagrad or rowwise_adagrad
  const double *lr, *eps, *bound;  // [n_bundles]
  T* rows;  // [n_copies, 2, width]: as the owner sent it, or as pushes left it; sum of the gradients of its own ticks
  T* numbers;  // [n_copies, 2]: accumulator, and the sum of these gradients' mean squares; or null
  int64_t n_bundles, width;
};

// Whether there is a copy that has values, of step `from` or later.
void kept_copies(const CopyPlaces& of, int64_t from, bool* kept);
// What came, where `sent` says so, into copies; and `values` [n, width] become what is read. Slots of -1 read what
// came.
template <class T> struct CameRows {
  const bool* sent;  // [n]
  int64_t step;
  double scale;
  T* values;              // [n, width]
  const T* accumulators;  // [n], or null
};
template <class T> void read_copies(const CopyPlaces& of, const CopyTable<T>& table, const CameRows<T>& came);
// Each copy has one tick more. Places of those that have more than `most` go to `over` [n]; returns how many.
int64_t tick_copies(const CopyPlaces& of, int64_t step, double scale, int64_t most, int64_t* over);
// Gradients [n, width] of that tick into sums.
template <class T> void add_to_copies(const CopyPlaces& of, const CopyTable<T>& table, const T* gradients);
// Sums [n, width] of copies, and what is said of their squares [n] (or null); where `scale` is given, copies become
// what their ticks have made of them. No slot is -1.
template <class T>
void sums_of_copies(const CopyPlaces& of, const CopyTable<T>& table, const double* scale, T* sums, T* squares);
// Ticks [n] of copies that have been pushed, which have values still, or where `forget` none. No slot is -1.
void end_ticks(const CopyPlaces& of, bool forget, int64_t* ticks);

}  // namespace hpcrec

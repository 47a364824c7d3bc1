// Learning on the device: the calls of hpcrec/learn.h, over device memory and in a stream's order.
#pragma once
#include "device.h"
#include "hpcrec/learn.h"

namespace hpcrec::cuda {

template <class T> void merge(const Occurrences<T>& from, T* merged, const Queue& queue);
template <class T> void squared_norms(const T* merged, int64_t n, int64_t width, T* out, const Queue& queue);
template <class T, class Rows>
void update(const Target<T, Rows>& target, const T* merged, const Learning<T>& how, const Queue& queue);
template <class T, class Rows>
void merge_update(const Target<T, Rows>& target, const Occurrences<T>& from, const Learning<T>& how,
                  const Queue& queue);

}  // namespace hpcrec::cuda

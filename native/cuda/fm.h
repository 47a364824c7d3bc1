// The calls of hpcrec/fm.h on the device, over device memory and in a stream's order.
#pragma once
#include "device.h"
#include "hpcrec/fm.h"

namespace hpcrec::cuda {

template <class T> void fm_sums(const FmSums<T>& in, T* sums, T* squares, const Queue& queue);
template <class T>
void fm_sums_backward(const FmSums<T>& in, const T* sums_gradient, const T* squares_gradient,
                      const Strided<T>& gradient, const Queue& queue);

}  // namespace hpcrec::cuda

// Bags pooled by max on the device: the calls of hpcrec/maximum.h, over device memory and in a stream's order.
#pragma once
#include "device.h"
#include "hpcrec/maximum.h"

namespace hpcrec::cuda {

template <class T, class E> void pooled_max(const Largest<T, E>& call, const Queue& queue);
template <class T> void pooled_max_backward(const LargestBackward<T>& call, const Queue& queue);

}  // namespace hpcrec::cuda

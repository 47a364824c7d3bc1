// Moving rows on the device: the calls of hpcrec/lookup.h, over device memory and in a stream's order.
#pragma once
#include "device.h"
#include "hpcrec/lookup.h"

namespace hpcrec::cuda {

template <class T, class E> void pooled_gather(const Gather<T, E>& call, const Queue& queue);
template <class T> void copy_vectors(const Copy<T>& call, const Queue& queue);

}  // namespace hpcrec::cuda

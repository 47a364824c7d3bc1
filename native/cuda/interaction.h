// The calls of hpcrec/interaction.h on the device, over device memory and in a stream's order.
#pragma once
#include "device.h"
#include "hpcrec/interaction.h"

namespace hpcrec::cuda {

template <class T> void dot_interaction(const Vectors<T>& in, T* out, const Queue& queue);
template <class T>
void dot_interaction_backward(const Vectors<T>& in, const T* gradient, T* first_gradient, T* block_gradient,
                              const Queue& queue);

}  // namespace hpcrec::cuda

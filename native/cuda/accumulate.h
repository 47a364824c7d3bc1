// Vectors that are added to targets of their own.
#pragma once
#include "device.h"
#include "hpcrec/lookup.h"

namespace hpcrec::cuda {

// With `accumulate` and target_start: targets may repeat. Those that overlap otherwise are a fault.
template <class T> void add_vectors(const Copy<T>& call, const Queue& queue);

}  // namespace hpcrec::cuda

// What all bindings of the device's kernels share: arrays in device memory (on the host, where emulated), a stream, and
// a word for faults. Shapes and types are checked in hpcrec/kernels/, contents by the kernels.
#pragma once
#ifndef HPCREC_EMULATED
#define HPCREC_DEVICE_ARRAYS
#endif
#include <type_traits>

#include "hpcrec/arrays.h"

#include "device.h"

namespace hpcrec::bindings {
#ifndef HPCREC_EMULATED
static_assert(std::is_same_v<Where, nb::device::cuda>, "hpcrec/arrays.h was included before bind.h");
#endif
using Faults = Out<int32_t>;

inline cuda::Queue queue(uintptr_t stream, const Faults& faults) {
  return {reinterpret_cast<cudaStream_t>(stream), reinterpret_cast<unsigned*>(faults.data())};
}

// Each of a file of its own.
void bind_lookup(nb::module_& m);
void bind_messages(nb::module_& m);
void bind_packed(nb::module_& m);
void bind_slots(nb::module_& m);

}  // namespace hpcrec::bindings

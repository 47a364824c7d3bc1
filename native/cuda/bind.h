// What all bindings of the device's kernels share: arrays in device memory (on the host, where emulated), a stream, and
// a word for faults. Shapes and types are checked in hpcrec/kernels/, contents by the kernels.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "device.h"
#include "hpcrec/half_rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hpcrec::bindings {
#ifdef HPCREC_EMULATED
using Where = nb::device::cpu;
#else
using Where = nb::device::cuda;
#endif
template <class T> using In = nb::ndarray<const T, nb::c_contig, Where>;
template <class T> using Out = nb::ndarray<T, nb::c_contig, Where>;
template <class T> using Maybe = std::optional<T>;
using Ids = In<int64_t>;
using Faults = Out<int32_t>;

template <class A> auto pointer(const Maybe<A>& array) -> decltype(array->data()) {
  return array ? array->data() : nullptr;
}
template <class A> int64_t size(const A& array) {
  return static_cast<int64_t>(array.size());
}
inline cuda::Queue queue(uintptr_t stream, const Faults& faults) {
  return {reinterpret_cast<cudaStream_t>(stream), reinterpret_cast<unsigned*>(faults.data())};
}
template <class F> auto without_gil(F&& f) {
  nb::gil_scoped_release release;
  return f();
}

// Calls f with an element of the kind.
template <class F> void with_half(int kind, F&& f) {
  if (static_cast<HalfKind>(kind) == HalfKind::fp16) f(Fp16{});
  else f(Bf16{});
}

// Each of a file of its own.
void bind_lookup(nb::module_& m);
void bind_messages(nb::module_& m);
void bind_packed(nb::module_& m);
void bind_slots(nb::module_& m);

}  // namespace hpcrec::bindings

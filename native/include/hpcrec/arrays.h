// Arrays as all bindings take them: of the host, or of the GPU where HPCREC_DEVICE_ARRAYS is defined before. Knows no
// kernel.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>

namespace hpcrec::bindings {
namespace nb = nanobind;
using namespace nb::literals;

#ifdef HPCREC_DEVICE_ARRAYS
using Where = nb::device::cuda;
#else
using Where = nb::device::cpu;
#endif
template <class T> using In = nb::ndarray<const T, nb::c_contig, Where>;
template <class T> using Out = nb::ndarray<T, nb::c_contig, Where>;
template <class T> using Maybe = std::optional<T>;
using Ids = In<int64_t>;

template <class A> auto pointer(const Maybe<A>& array) -> decltype(array->data()) {
  return array ? array->data() : nullptr;
}
template <class A> int64_t size(const A& array) {
  return static_cast<int64_t>(array.size());
}
template <class F> auto without_gil(F&& f) {
  nb::gil_scoped_release release;
  return f();
}

}  // namespace hpcrec::bindings

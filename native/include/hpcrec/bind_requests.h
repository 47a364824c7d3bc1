// Bindings of the kernels on requests.
#pragma once
#include <nanobind/nanobind.h>

namespace hpcrec {
void bind_requests(nanobind::module_& m);
}  // namespace hpcrec

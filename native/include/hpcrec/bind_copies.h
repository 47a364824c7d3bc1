// Bindings of the kernels on copies of rows.
#pragma once
#include <nanobind/nanobind.h>

namespace hpcrec {
void bind_copies(nanobind::module_& m);
}  // namespace hpcrec

// Bindings of rows in pages, and of reading and writing these.
#pragma once
#include <nanobind/nanobind.h>

namespace hpcrec {
void bind_pages(nanobind::module_& m);
}  // namespace hpcrec

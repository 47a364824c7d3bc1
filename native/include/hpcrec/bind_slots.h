// Bindings of the slot map.
#pragma once
#include <nanobind/nanobind.h>

namespace hpcrec {
void bind_slots(nanobind::module_& m);
}  // namespace hpcrec

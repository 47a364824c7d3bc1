// Bindings of messages between the ranks of one host, and of where these meet.
#pragma once
#include <nanobind/nanobind.h>

namespace hpcrec {
void bind_host_messages(nanobind::module_& m);
}  // namespace hpcrec

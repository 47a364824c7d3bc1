// What a kernel needs its arguments to be, and whether given ones are: the checks of hpcrec/kernels/checks.py that let
// through what is right, in one call. What is wrong is left to Python, which says it in words.
#pragma once
#include <nanobind/nanobind.h>

namespace hpcrec {

// Adds `signature(parameters, names, key, wanted)`, which returns a function of as many arguments. That says whether
// `names[key]` is `wanted` and each argument fits its parameter.
// A parameter is one of
//   "written name: type[sizes]"   a C-contiguous, aligned NumPy array, writable, that shares memory with no other
//   "name: type[sizes]"           one that is read
//   "name?: type[sizes]"          either, or None
//   "name: D", "name: 0+", "name: 1+"   an integer that is the size D, or at least so much
//   "..."                         after which all can be left out
// The type is one of `types` in signature.cpp. A size is a number, a letter, or one after the other ("V + 1"), or
// "any". A letter is the same number wherever it stands, below 2^31, and D, which is a width, at least 1.
void bind_signature(nanobind::module_& m);

}  // namespace hpcrec

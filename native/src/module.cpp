// Bindings of the native kernels: only m.def lines. What each kernel computes is written in hpcrec/kernels/.
#include <nanobind/nanobind.h>

NB_MODULE(_native, m) { m.doc() = "hpcrec native kernels"; }

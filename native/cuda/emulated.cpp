// The CUDA sources as C++, over the emulator: one unit, so that there is one of each.
#include "learn.cu"
#include "lookup.cu"
#include "runtime.cu"

// The CUDA sources as C++, over the emulator: one unit, so that there is one of each.
#include "half_rows.cu"
#include "ids.cu"
#include "learn.cu"
#include "lookup.cu"
#include "messages.cu"
#include "primitives.cu"
#include "runtime.cu"
#include "select.cu"

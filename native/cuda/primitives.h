// Sorting and adding up of whole arrays: CUB's on a GPU, the standard library's where emulated.
#pragma once
#include "device.h"

namespace hpcrec::cuda {

// Numbers the n keys and sorts them with their numbers, stably. Fewer than 2^31, as below.
void sort_numbered(const int64_t* keys, int64_t n, int64_t* sorted, uint32_t* numbers, const Queue& queue);
// out[i] = in[0] + ... + in[i]; may be in place.
void inclusive_sum(const int64_t* in, int64_t n, int64_t* out, const Queue& queue);

}  // namespace hpcrec::cuda

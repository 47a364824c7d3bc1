// Sorting, adding up and looking at whole arrays: CUB's on a GPU, the standard library's where emulated.
#pragma once
#include "device.h"

namespace hpcrec::cuda {

// Notes where offsets [n + 1] do not begin at 0, fall, or do not end at `end`.
void check_offsets(const int64_t* offsets, int64_t n, int64_t end, const Queue& queue);
// Numbers the n keys and sorts them with their numbers, stably. Fewer than 2^31, as below.
void sort_numbered(const int64_t* keys, int64_t n, int64_t* sorted, uint32_t* numbers, const Queue& queue);
// Sorts n values by the lowest `bits` (1 to 32) bits of their keys, stably.
void sort_pairs(const uint32_t* keys, const uint32_t* values, int64_t n, int bits, uint32_t* sorted_keys,
                uint32_t* sorted_values, const Queue& queue);
// out[i] = in[0] + ... + in[i]; may be in place.
void inclusive_sum(const int64_t* in, int64_t n, int64_t* out, const Queue& queue);

}  // namespace hpcrec::cuda

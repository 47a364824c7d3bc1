// Sorting, adding up and looking at whole arrays: CUB's on a GPU, the standard library's where emulated.
#pragma once
#include "device.h"

namespace hpcrec::cuda {

// Notes where offsets [n + 1] do not begin at 0, fall, or do not end at `end`.
void check_offsets(const int64_t* offsets, int64_t n, int64_t end, const Queue& queue);
// Bits that values of [0, limit) take.
inline int bits_below(int64_t limit) {
  int bits = 1;
  while (bits < 63 && (limit - 1) >> bits) ++bits;
  return bits;
}
constexpr int narrow_bits = 32;  // keys of so many are sorted in half the memory
// Sorts n keys, uint32_t or int64_t, with their numbers, stably. All keys are of [0, 2^bits), or any where `bits` are
// all that there are; fewer bits take fewer passes. Fewer than 2^31 keys, as below.
template <class Key>
void sort_pairs(const Key* keys, const uint32_t* numbers, int64_t n, int bits, Key* sorted, uint32_t* sorted_numbers,
                const Queue& queue);
// The same of keys that are numbered as they come.
template <class Key>
void sort_numbered(const Key* keys, int64_t n, int bits, Key* sorted, uint32_t* numbers, const Queue& queue);
// out[i] = in[0] + ... + in[i], modulo 2^64; may be in place.
// Of int64_t or uint32_t.
template <class Word> void inclusive_sum(const Word* in, int64_t n, Word* out, const Queue& queue);
// out[i] = the largest of in[0] ... in[i]; may be in place.
void inclusive_max(const uint32_t* in, int64_t n, uint32_t* out, const Queue& queue);

}  // namespace hpcrec::cuda

// The slot map on the device: what hpcrec/kernels/reference_slots.py defines, over device memory and in a stream's
// order.
#pragma once
#include "device.h"

namespace hpcrec::cuda {

constexpr int64_t no_id = INT64_MIN;  // where a slot holds none

// Slots, a multiple of 32: ids [capacity], from 16 bytes' alignment on, and the seed of the hash that spreads them.
struct Slots {
  int64_t* ids;
  int64_t capacity;
  uint64_t seed;
};

void find_slots(const Slots& map, const int64_t* ids, int64_t n, int64_t* slots, const Queue& queue);
// Uses of slots are clocks (int32), or counts in the bits above the clocks (int64). Waits, and returns how many ids are
// new.
template <class U>
int64_t admit_slots(const Slots& map, U* uses, const int64_t* ids, int64_t n, int32_t clock, int32_t keep_from,
                    int64_t* slots, int64_t* evicted, const Queue& queue);
template <class U>
void touch_slots(U* uses, int64_t capacity, const int64_t* slots, int64_t n, int32_t clock, const Queue& queue);
void remove_slots(const Slots& map, const int64_t* ids, int64_t n, int64_t* slots, const Queue& queue);

}  // namespace hpcrec::cuda

// The slot map of the host: what hpcrec/kernels/reference_slots.py defines, over arrays that the caller has.
//
// A set's ids are four cache lines, which are asked for many ids ahead and compared at once.
#pragma once
#include <cstdint>

namespace hpcrec {

constexpr int64_t slot_ways = 32;
constexpr int64_t no_slot_id = INT64_MIN;  // where a slot holds none

// Slots, a multiple of 32: ids [capacity], the seed of the hashes that spread them, and in how many sets an id may lie.
constexpr int most_slot_sets = 2;
struct Slots {
  int64_t* ids;
  int64_t capacity;
  uint64_t seed;
  int sets;
};
// What a call is given, n ids, and gives.
struct SlotCall {
  const int64_t* ids;
  int64_t n;
  int32_t clock, keep_from;
  int64_t* slots;
  int64_t* evicted;
};

void find_slots(const Slots& map, const int64_t* ids, int64_t n, int64_t* slots);
// Uses of slots are clocks (int32), or counts in the bits above the clocks (int64). Returns how many ids are new.
template <class U> int64_t admit_slots(const Slots& map, U* uses, const SlotCall& call);
template <class U> void touch_slots(U* uses, int64_t capacity, const int64_t* slots, int64_t n, int32_t clock);
void remove_slots(const Slots& map, const int64_t* ids, int64_t n, int64_t* slots);

}  // namespace hpcrec

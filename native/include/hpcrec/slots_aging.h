// The slot map whose counts of uses age and outlive a slot, and that may know which ids are to come: what
// hpcrec/kernels/reference_slots_aging.py defines, over arrays that the caller has.
#pragma once
#include <cstdint>

#include "hpcrec/slots.h"

namespace hpcrec {

// Uses, ghosts [capacity], and now, swept, admitted: the latest clock, that of the last look at what ghosts foresee,
// and ids that were given slots since counts were last halved.
struct AgingState {
  int64_t* uses;
  uint32_t* ghosts;
  int64_t* numbers;
};

int64_t admit_aging_slots(const Slots& map, const AgingState& state, const SlotCall& call);
// Slots are kept at a clock: that counts no use.
void keep_aging_slots(const Slots& map, const AgingState& state, const int64_t* slots, int64_t n, int32_t clock);
// n ids will be asked for at a clock to come.
void foresee_slots(const Slots& map, const AgingState& state, const int64_t* ids, int64_t n, int32_t clock);
// Of the slots that are not used at the latest clock, how many have ids that are foreseen, and how many there are.
struct Foreseen {
  int64_t foreseen, idle;
};
Foreseen count_foreseen(const Slots& map, const AgingState& state);

}  // namespace hpcrec

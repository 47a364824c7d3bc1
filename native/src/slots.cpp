// The slot map: ids found by comparing their whole set; the least recently and the least frequently used go.
#include "hpcrec/slots.h"

#include <limits>
#include <stdexcept>
#include <string>

#include "hpcrec/parallel.h"
#include "hpcrec/slot_sets.h"

namespace hpcrec {
namespace {
constexpr int64_t work_an_id = 16;  // in element operations
constexpr int32_t most_count = std::numeric_limits<int32_t>::max();

// The use of a slot: its clock, under LFU below the count of clocks at which it was used.
int32_t clock_of(int32_t use) {
  return use;
}
int32_t clock_of(int64_t use) {
  return static_cast<int32_t>(use);
}
void set_first(int32_t& use, int32_t clock) {
  use = clock;
}
void set_first(int64_t& use, int32_t clock) {
  use = int64_t{1} << 32 | clock;
}
int32_t used_again(int32_t, int32_t clock) {
  return clock;
}
int64_t used_again(int64_t use, int32_t clock) {
  const int64_t count = use >> 32;
  return (count < most_count ? count + 1 : count) << 32 | clock;
}
template <class U> void mark(U& use, int32_t clock) {
  if (clock_of(use) < clock) use = used_again(use, clock);
}

// The id of least use goes.
template <class U> struct LeastUsed {
  U* uses;
  int32_t clock, keep_from;

  void use(int64_t slot) { mark(uses[slot], clock); }
  void insert(int64_t slot, int64_t, int64_t) { set_first(uses[slot], clock); }
  void prefetch(int64_t first) const { prefetch_set(uses + first); }
  // Of those not used from `keep_from` on: none of their uses is the largest number.
  Candidate candidate(int64_t first) const {
    constexpr U none = std::numeric_limits<U>::max();
    const U* const set = uses + first;
    U least = none;
    for (int64_t way = 0; way < slot_ways; ++way)
      least = std::min(least, clock_of(set[way]) < keep_from ? set[way] : none);
    if (least == none) return {};
    return {first + (std::find(set, set + slot_ways, least) - set), least};
  }
};

// Slots of ids, a piece of the call's: sets are asked for ahead, second ones as soon as the first have been looked at.
template <int n_sets> void find_some(const Slots& map, const int64_t* ids, Range of, int64_t* slots) {
  constexpr int64_t places = n_sets * sets_ahead;
  const SlotSpread spread(map);
  int64_t firsts[places];
  const auto ask = [&](int64_t k, int set) {
    const int64_t first = firsts[k % places] = spread.first_of(ids[k], set);
    prefetch_set(map.ids + first);
  };
  const auto look = [&](int64_t k) {
    const int64_t first = firsts[k % places], way = way_of(map.ids + first, ids[k]);
    slots[k] = way < 0 || ids[k] == no_slot_id ? -1 : first + way;
  };
  for (int64_t k = of.first; k < of.last + places; ++k) {
    const int64_t whole = k - places, half = k - sets_ahead;
    if (n_sets > 1 && whole >= of.first && slots[whole] < 0) look(whole);
    if (half >= of.first && half < of.last) {
      look(half);
      if (n_sets > 1 && slots[half] < 0) ask(half, 1);
    }
    if (k < of.last) ask(k, 0);
  }
}
}  // namespace

void require_slot_ids(const int64_t* ids, int64_t n) {
  const int64_t* const bad = std::find(ids, ids + n, no_slot_id);
  if (bad == ids + n) return;
  throw std::invalid_argument("ids[" + std::to_string(bad - ids) +
                              "] is -2^63, which stands for an empty slot; give that id another number");
}

void refuse_slot(const int64_t* slots, int64_t at, int64_t capacity) {
  throw std::invalid_argument("slots[" + std::to_string(at) + "] is " + std::to_string(slots[at]) +
                              "; allowed are 0 <= value < " + std::to_string(capacity) + ", and -1");
}

void find_all_slots(const Slots& map, const int64_t* ids, int64_t n, int64_t* slots) {
  parallel_pieces(team(n * work_an_id), [&](int piece, int pieces) {
    const Range mine = share(n, piece, pieces);
    map.sets == 1 ? find_some<1>(map, ids, mine, slots) : find_some<2>(map, ids, mine, slots);
  });
}

void find_slots(const Slots& map, const int64_t* ids, int64_t n, int64_t* slots) {
  find_all_slots(map, ids, n, slots);
  require_slot_ids(ids, n);
}

template <class U> int64_t admit_slots(const Slots& map, U* uses, const SlotCall& call) {
  LeastUsed<U> rule{uses, call.clock, call.keep_from};
  return admit_by(map, rule, call);
}

template <class U> void touch_slots(U* uses, int64_t capacity, const int64_t* slots, int64_t n, int32_t clock) {
  for_slots(uses, capacity, slots, n, [&](int64_t slot) { mark(uses[slot], clock); });
}

void remove_slots(const Slots& map, const int64_t* ids, int64_t n, int64_t* slots) {
  find_slots(map, ids, n, slots);
  for (int64_t k = 0; k < n; ++k)
    if (slots[k] >= 0) map.ids[slots[k]] = no_slot_id;
}

template int64_t admit_slots(const Slots&, int32_t*, const SlotCall&);
template int64_t admit_slots(const Slots&, int64_t*, const SlotCall&);
template void touch_slots(int32_t*, int64_t, const int64_t*, int64_t, int32_t);
template void touch_slots(int64_t*, int64_t, const int64_t*, int64_t, int32_t);

}  // namespace hpcrec

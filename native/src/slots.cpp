// The slot map: ids found by comparing their whole set, missing ones inserted one after the other.
#include "hpcrec/slots.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "hpcrec/mix.h"
#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
constexpr int64_t ahead = 16;  // sets on their way from memory
constexpr int64_t line_ids = 8;
constexpr int64_t work_an_id = 16;  // in element operations
constexpr int32_t most_count = std::numeric_limits<int32_t>::max();

class Spread {
  uint64_t n_sets_, key_;

 public:
  explicit Spread(const Slots& map) : n_sets_(static_cast<uint64_t>(map.capacity / slot_ways)), key_(mix(map.seed)) {}

  // The first slot of an id's set.
  int64_t first_of(int64_t id) const {
    const uint64_t x = mix(static_cast<uint64_t>(id) ^ key_);
    return static_cast<int64_t>((static_cast<unsigned __int128>(x) * n_sets_) >> 64) * slot_ways;
  }
};

// The way that has an id, or -1; no id is in two. Without a branch, so that compilers compare several at once.
int64_t way_of(const int64_t* set, int64_t id) {
  int64_t found = 0;
  for (int64_t way = 0; way < slot_ways; ++way) found |= set[way] == id ? way + 1 : 0;
  return found - 1;
}
// The lowest way that holds no id, or `slot_ways`.
int64_t empty_way(const int64_t* set) {
  int64_t lowest = slot_ways;
  for (int64_t way = slot_ways; way-- > 0;) lowest = set[way] == no_slot_id ? way : lowest;
  return lowest;
}

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

// The lowest way of least use among those not used from `keep_from` on, or -1. No such use is the largest number.
template <class U> int64_t victim(const U* uses, int32_t keep_from) {
  constexpr U none = std::numeric_limits<U>::max();
  U least = none;
  for (int64_t way = 0; way < slot_ways; ++way)
    least = std::min(least, clock_of(uses[way]) < keep_from ? uses[way] : none);
  return least == none ? -1 : std::find(uses, uses + slot_ways, least) - uses;
}

void prefetch_set(const int64_t* set) {
  for (int64_t way = 0; way < slot_ways; way += line_ids) __builtin_prefetch(set + way);
}

// Slots of ids [first, last), -1 where they have none.
void find_some(const Slots& map, const int64_t* ids, Range of, int64_t* slots) {
  const Spread spread(map);
  int64_t sets[ahead];
  const auto ask = [&](int64_t k) {
    const int64_t set = sets[k % ahead] = spread.first_of(ids[k]);
    prefetch_set(map.ids + set);
  };
  for (int64_t k = of.first; k < std::min(of.first + ahead, of.last); ++k) ask(k);
  for (int64_t k = of.first; k < of.last; ++k) {
    const int64_t set = sets[k % ahead];
    const int64_t way = way_of(map.ids + set, ids[k]);
    slots[k] = way < 0 || ids[k] == no_slot_id ? -1 : set + way;
    if (k + ahead < of.last) ask(k + ahead);
  }
}

void find_all(const Slots& map, const int64_t* ids, int64_t n, int64_t* slots) {
  parallel_pieces(team(n * work_an_id),
                  [&](int piece, int pieces) { find_some(map, ids, share(n, piece, pieces), slots); });
}

void require_ids(const int64_t* ids, int64_t n) {
  const int64_t* const bad = std::find(ids, ids + n, no_slot_id);
  if (bad == ids + n) return;
  throw std::invalid_argument("ids[" + std::to_string(bad - ids) +
                              "] is -2^63, which stands for an empty slot; give that id another number");
}

template <class U> void mark_all(U* uses, const int64_t* slots, int64_t n, int32_t clock) {
  for (int64_t k = 0; k < n; ++k) {
    if (k + ahead < n && slots[k + ahead] >= 0) __builtin_prefetch(uses + slots[k + ahead], 1);
    if (slots[k] >= 0) mark(uses[slots[k]], clock);
  }
}
}  // namespace

void find_slots(const Slots& map, const int64_t* ids, int64_t n, int64_t* slots) {
  find_all(map, ids, n, slots);
  require_ids(ids, n);
}

template <class U> int64_t admit_slots(const Slots& map, U* uses, const SlotCall& call) {
  find_all(map, call.ids, call.n, call.slots);
  mark_all(uses, call.slots, call.n, call.clock);
  require_ids(call.ids, call.n);
  std::fill(call.evicted, call.evicted + call.n, no_slot_id);
  std::vector<int64_t> missing;
  for (int64_t k = 0; k < call.n; ++k)
    if (call.slots[k] < 0) missing.push_back(k);

  const Spread spread(map);
  const auto n_missing = static_cast<int64_t>(missing.size());
  int64_t n_new = 0;
  for (int64_t m = 0; m < n_missing; ++m) {
    if (m + ahead < n_missing) {
      const int64_t next = spread.first_of(call.ids[missing[m + ahead]]);
      prefetch_set(map.ids + next);
      for (size_t byte = 0; byte < slot_ways * sizeof(U); byte += line_ids * sizeof(int64_t))
        __builtin_prefetch(reinterpret_cast<const char*>(uses + next) + byte, 1);
    }
    const int64_t k = missing[m], id = call.ids[k], first = spread.first_of(id);
    int64_t* const set = map.ids + first;
    int64_t way = way_of(set, id);  // given twice
    if (way >= 0) {
      call.slots[k] = first + way;
      continue;
    }
    way = empty_way(set);
    if (way == slot_ways) way = victim(uses + first, call.keep_from);
    if (way < 0) continue;
    call.slots[k] = first + way;
    call.evicted[k] = set[way];
    set[way] = id;
    set_first(uses[first + way], call.clock);
    ++n_new;
  }
  return n_new;
}

template <class U> void touch_slots(U* uses, int64_t capacity, const int64_t* slots, int64_t n, int32_t clock) {
  int64_t bad = n;
  const auto there = [&](int64_t k) { return static_cast<uint64_t>(slots[k]) < static_cast<uint64_t>(capacity); };
  for (int64_t k = n; k-- > 0;) {  // in any order: one clock counts once
    if (k >= ahead && there(k - ahead)) __builtin_prefetch(uses + slots[k - ahead], 1);
    if (there(k)) mark(uses[slots[k]], clock);
    else if (slots[k] != -1) bad = k;
  }
  if (bad < n)
    throw std::invalid_argument("slots[" + std::to_string(bad) + "] is " + std::to_string(slots[bad]) +
                                "; allowed are 0 <= value < " + std::to_string(capacity) + ", and -1");
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

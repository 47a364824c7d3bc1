// What every rule of the slot map does with sets: where an id belongs, and which way has it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "hpcrec/mix.h"
#include "hpcrec/slots.h"

namespace hpcrec {

constexpr int64_t sets_ahead = 16;  // on their way from memory
constexpr int64_t line_bytes = 64;

class SlotSpread {
  uint64_t n_sets_, keys_[most_slot_sets], tag_key_;

  static int64_t hash(int64_t id, uint64_t key, uint64_t n) {
    const uint64_t x = mix(static_cast<uint64_t>(id) ^ key);
    return static_cast<int64_t>((static_cast<unsigned __int128>(x) * n) >> 64);
  }

 public:
  explicit SlotSpread(const Slots& map)
      : n_sets_(static_cast<uint64_t>(map.capacity / slot_ways)),
        keys_{mix(map.seed), mix(map.seed + 2)},
        tag_key_(mix(map.seed + 1)) {}

  // The first slot of an id's first set, or of its second one (1).
  int64_t first_of(int64_t id, int set = 0) const { return hash(id, keys_[set], n_sets_) * slot_ways; }
  // What an id is told from others of its set by, where there is no room for the id.
  uint32_t tag_of(int64_t id, uint32_t n_tags) const { return static_cast<uint32_t>(hash(id, tag_key_, n_tags)); }
};

// The way that has an id, or -1; no id is in two. Without a branch, so that compilers compare several at once.
inline int64_t way_of(const int64_t* set, int64_t id) {
  int64_t found = 0;
  for (int64_t way = 0; way < slot_ways; ++way) found |= set[way] == id ? way + 1 : 0;
  return found - 1;
}
// The lowest way that holds no id, or `slot_ways`.
inline int64_t empty_way(const int64_t* set) {
  int64_t lowest = slot_ways;
  for (int64_t way = slot_ways; way-- > 0;) lowest = set[way] == no_slot_id ? way : lowest;
  return lowest;
}

// Asks for what a set has in an array of one element a slot.
template <class T> void prefetch_set(const T* set) {
  for (int64_t way = 0; way < slot_ways; way += line_bytes / static_cast<int64_t>(sizeof(T)))
    __builtin_prefetch(set + way);
}

// Throws where an id is the one that stands for an empty slot.
void require_slot_ids(const int64_t* ids, int64_t n);
// Slots of ids, -1 where they have none or are that one.
void find_all_slots(const Slots& map, const int64_t* ids, int64_t n, int64_t* slots);
[[noreturn]] void refuse_slot(const int64_t* slots, int64_t at, int64_t capacity);

// Calls f(slot) for each that is there, in any order; -1 is none. Throws where one is of no such map.
template <class U, class F> void for_slots(U* uses, int64_t capacity, const int64_t* slots, int64_t n, F&& f) {
  int64_t bad = n;
  const auto there = [&](int64_t k) { return static_cast<uint64_t>(slots[k]) < static_cast<uint64_t>(capacity); };
  for (int64_t k = n; k-- > 0;) {
    if (k >= sets_ahead && there(k - sets_ahead)) __builtin_prefetch(uses + slots[k - sets_ahead], 1);
    if (there(k)) f(slots[k]);
    else if (slots[k] != -1) bad = k;
  }
  if (bad < n) refuse_slot(slots, bad, capacity);
}

// The slot that is to go first of some, and how soon: the least rank of all does. No such slot: -1, and the largest.
struct Candidate {
  int64_t slot = -1, rank = std::numeric_limits<int64_t>::max();
};

// Finds ids and inserts those that are missing. A rule has `uses`; `use(slot)`, a slot's use in this call;
// `candidate(first)`, of the set from this slot on; `insert(slot, gone, id)`, the slot's first use, by an id that comes
// for the one that is gone, or for none; and `prefetch(first)`.
template <class Rule> int64_t admit_by(const Slots& map, Rule& rule, const SlotCall& call) {
  find_all_slots(map, call.ids, call.n, call.slots);
  for_slots(rule.uses, map.capacity, call.slots, call.n, [&](int64_t slot) { rule.use(slot); });
  require_slot_ids(call.ids, call.n);
  std::fill(call.evicted, call.evicted + call.n, no_slot_id);
  std::vector<int64_t> missing;
  for (int64_t k = 0; k < call.n; ++k)
    if (call.slots[k] < 0) missing.push_back(k);

  const SlotSpread spread(map);
  const auto n_missing = static_cast<int64_t>(missing.size());
  int64_t n_new = 0;
  for (int64_t m = 0; m < n_missing; ++m) {
    if (m + sets_ahead < n_missing)
      for (int set = 0; set < map.sets; ++set) {
        const int64_t next = spread.first_of(call.ids[missing[m + sets_ahead]], set);
        prefetch_set(map.ids + next);
        rule.prefetch(next);
      }
    const int64_t k = missing[m], id = call.ids[k];
    int64_t held = -1, empty = -1;
    Candidate out;
    for (int set = map.sets; set-- > 0;) {  // of equals those of the first set
      const int64_t first = spread.first_of(id, set);
      const int64_t its = way_of(map.ids + first, id), free = empty_way(map.ids + first);
      if (its >= 0) held = first + its;  // given twice
      if (free < slot_ways) empty = first + free;
    }
    if (held < 0 && empty < 0)
      for (int set = 0; set < map.sets; ++set) {
        const Candidate its = rule.candidate(spread.first_of(id, set));
        if (its.rank < out.rank) out = its;
      }
    const int64_t slot = held >= 0 ? held : empty >= 0 ? empty : out.slot;
    if (slot < 0) continue;
    call.slots[k] = slot;
    if (held >= 0) continue;
    call.evicted[k] = map.ids[slot];
    rule.insert(slot, map.ids[slot], id);
    map.ids[slot] = id;
    ++n_new;
  }
  return n_new;
}

}  // namespace hpcrec

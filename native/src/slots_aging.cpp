// The slot map with counts that age and outlive a slot: uses of slots, and ghosts of ids that have none.
#include "hpcrec/slots_aging.h"

#include <cstring>

#include "hpcrec/slot_sets.h"

namespace hpcrec {
namespace {
constexpr int64_t most_ahead = (1 << 14) - 1;  // clocks that a use is foreseen
constexpr int64_t sweep_after = 1 << 13;       // clocks
constexpr int64_t age_after = 10;              // ids that were given slots, by slots
constexpr int64_t most_count = 0xffff;
constexpr uint32_t n_tags = 1 << 12;
enum Number { now, swept, admitted };

// A slot's use, from the lowest bit on: the clock of 31 bits, whether its use is still to be counted, the count of 16,
// and how long after the clock the last use comes that is foreseen, in 15.
struct Use {
  int64_t clock, count, ahead;
  bool kept;

  explicit Use(int64_t bits)
      : clock(bits & INT32_MAX), count(bits >> 32 & most_count), ahead(bits >> 48), kept(bits >> 31 & 1) {}
  Use(int64_t clock_, int64_t count_, int64_t last)
      : clock(clock_), count(count_), ahead(std::clamp<int64_t>(last - clock_, 0, most_ahead)), kept(false) {}

  int64_t last() const { return clock + ahead; }
  int64_t bits() const { return ahead << 48 | count << 32 | int64_t{kept} << 31 | clock; }
};

// A ghost, from the highest bit on: the tag of 12 bits, the count of 4, whether a use is foreseen, and the clock of the
// last such use, in 15. One that has neither count nor foreseen use is none.
constexpr uint32_t most_ghost_count = 15;
constexpr uint32_t known_bit = 1 << 15, last_mask = known_bit - 1, count_mask = most_ghost_count << 16;

// Clocks from `at` on to the last use that is foreseen; 0: it is over, or none is.
int64_t to_last(uint32_t ghost, int64_t at) {
  const auto ahead = static_cast<int64_t>((ghost - static_cast<uint32_t>(at)) & last_mask);
  return ghost & known_bit && ahead <= most_ahead ? ahead : 0;
}
uint32_t count_of(uint32_t ghost) {
  return (ghost & count_mask) >> 16;
}
// The least goes first.
uint32_t rank_of(uint32_t ghost, int64_t at) {
  return count_of(ghost) | (to_last(ghost, at) > 0 ? most_ghost_count + 1 : 0);
}

class Aging {
  Slots map_;
  AgingState state_;
  SlotSpread spread_;
  int64_t clock_, keep_from_;

  int64_t present() const { return state_.numbers[now]; }

 public:
  int64_t* uses;

  Aging(const Slots& map, const AgingState& state, int64_t clock, int64_t keep_from)
      : map_(map), state_(state), spread_(map), clock_(clock), keep_from_(keep_from), uses(state.uses) {}

  void prefetch(int64_t first) const {
    prefetch_set(uses + first);
    prefetch_set(state_.ghosts + first);
  }

  void use(int64_t slot) {
    Use its(uses[slot]);
    if (its.clock > clock_ || (its.clock == clock_ && !its.kept)) return;
    uses[slot] = Use(clock_, std::min(its.count + 1, most_count), its.last()).bits();
  }

  void keep(int64_t slot) {
    const Use its(uses[slot]);
    if (its.clock >= clock_) return;
    Use later(clock_, its.count, its.last());
    later.kept = true;
    uses[slot] = later.bits();
  }

  // Those of which no use is foreseen go first, of these the fewest uses, then the least recent one. Of the others the
  // one whose next use is to be expected last: the time to the last one, by how often it is used.
  Candidate candidate(int64_t first) const {
    constexpr int64_t foreseen = int64_t{1} << 62, most_time = int64_t{1} << 29;
    constexpr float fraction = 1 << 14;  // the quotient times it is below 2^28
    const int64_t at = present();
    int64_t ranks[slot_ways];
    for (int64_t way = 0; way < slot_ways; ++way) {
      const int64_t bits = uses[first + way], clock = bits & INT32_MAX, count = bits >> 32 & most_count;
      const int64_t ahead = std::max<int64_t>(clock + (bits >> 48) - at, 0);
      const float time = static_cast<float>(ahead) / static_cast<float>(std::max<int64_t>(count, 1)) * fraction;
      const int64_t known = foreseen | (most_time - static_cast<int32_t>(time)) << 31;
      const int64_t rank = (ahead > 0 ? known : count << 32) | clock;
      ranks[way] = clock < keep_from_ ? rank : INT64_MAX;
    }
    int64_t least = INT64_MAX;
    for (const int64_t rank : ranks) least = std::min(least, rank);
    if (least == INT64_MAX) return {};
    return {first + (std::find(ranks, ranks + slot_ways, least) - ranks), least};
  }

  void insert(int64_t slot, int64_t gone, int64_t id) {
    int64_t count = 1, last = 0;
    if (uint32_t* const ghost = ghost_of(id)) {
      count += count_of(*ghost);
      last = present() + to_last(*ghost, present());
      *ghost = 0;
    }
    if (gone != no_slot_id) {
      const Use its(uses[slot]);
      add_ghost(gone, std::min<int64_t>(its.count, most_ghost_count), its.last());
    }
    uses[slot] = Use(clock_, count, last).bits();
  }

  void foresee(int64_t slot, int64_t id) {
    if (slot >= 0) {
      const Use its(uses[slot]);
      Use known(its.clock, its.count, std::max(its.last(), clock_));
      known.kept = its.kept;
      uses[slot] = known.bits();
      return;
    }
    uint32_t* const ghost = ghost_of(id);
    if (!ghost) add_ghost(id, 0, clock_);
    else if (to_last(*ghost, present()) < clock_ - present())
      *ghost = (*ghost & ~last_mask) | known_bit | (static_cast<uint32_t>(clock_) & last_mask);
  }

 private:
  // Of an id's first set.
  uint32_t* ghosts_of(int64_t id) const { return state_.ghosts + spread_.first_of(id); }

  // The first ghost that may be an id's, or null.
  uint32_t* ghost_of(int64_t id) const {
    const uint32_t tag = spread_.tag_of(id, n_tags);
    uint32_t* const set = ghosts_of(id);
    int64_t found = slot_ways;
    for (int64_t i = slot_ways; i-- > 0;)
      found = set[i] >> 20 == tag && (set[i] & (count_mask | known_bit)) ? i : found;
    return found == slot_ways ? nullptr : set + found;
  }

  // In the place of the oldest of least rank; not in that of a higher one, nor of an equal one with a use foreseen,
  // which is the earlier.
  void add_ghost(int64_t id, int64_t count, int64_t last) {
    const int64_t at = present();
    uint32_t ghost = spread_.tag_of(id, n_tags) << 20 | static_cast<uint32_t>(count) << 16;
    if (last > at) ghost |= known_bit | (static_cast<uint32_t>(std::min(last, at + most_ahead)) & last_mask);
    const uint32_t rank = rank_of(ghost, at);
    uint32_t* const set = ghosts_of(id);
    uint32_t ranks[slot_ways], least = UINT32_MAX;
    for (int64_t i = 0; i < slot_ways; ++i) ranks[i] = rank_of(set[i], at);
    for (const uint32_t one : ranks) least = std::min(least, one);
    if (rank == 0 || rank < least || (rank == least && rank > most_ghost_count)) return;
    const int64_t out = std::find(ranks, ranks + slot_ways, least) - ranks;
    std::memmove(set + out, set + out + 1, static_cast<size_t>(slot_ways - 1 - out) * sizeof *set);
    set[slot_ways - 1] = ghost;
  }
};

// The clock is this one, if it was an earlier one. What ghosts no longer foresee is taken out, before clocks of 15 bits
// come round.
void go_on(const Slots& map, const AgingState& state, int64_t clock) {
  int64_t* const n = state.numbers;
  n[now] = std::max(n[now], clock);
  if (n[now] - n[swept] < sweep_after) return;
  const bool all = n[now] - n[swept] > most_ahead;
  for (int64_t i = 0; i < map.capacity; ++i)
    if (all || to_last(state.ghosts[i], n[now]) == 0) state.ghosts[i] &= ~(known_bit | last_mask);
  n[swept] = n[now];
}

void halve(const Slots& map, const AgingState& state) {
  for (int64_t i = 0; i < map.capacity; ++i) {
    const int64_t bits = state.uses[i], counts = most_count << 32;
    state.uses[i] = (bits & ~counts) | ((bits & counts) >> 1 & counts);
    const uint32_t ghost = state.ghosts[i];
    state.ghosts[i] = (ghost & ~count_mask) | ((ghost & count_mask) >> 1 & count_mask);
  }
}
}  // namespace

int64_t admit_aging_slots(const Slots& map, const AgingState& state, const SlotCall& call) {
  go_on(map, state, call.clock);
  Aging rule(map, state, call.clock, call.keep_from);
  const int64_t n_new = admit_by(map, rule, call);
  int64_t& since = state.numbers[admitted];
  since += n_new;
  if (since >= age_after * map.capacity) {
    since = 0;
    halve(map, state);
  }
  return n_new;
}

void keep_aging_slots(const Slots& map, const AgingState& state, const int64_t* slots, int64_t n, int32_t clock) {
  Aging rule(map, state, clock, clock);
  for_slots(state.uses, map.capacity, slots, n, [&](int64_t slot) { rule.keep(slot); });
}

Foreseen count_foreseen(const Slots& map, const AgingState& state) {
  const int64_t at = state.numbers[now];
  Foreseen found{0, 0};
  for (int64_t i = 0; i < map.capacity; ++i) {
    const int64_t bits = state.uses[i], clock = bits & INT32_MAX;
    const bool idle = map.ids[i] == no_slot_id || clock < at;
    found.idle += idle;
    found.foreseen += idle && map.ids[i] != no_slot_id && clock + (bits >> 48) > at;
  }
  return found;
}

void foresee_slots(const Slots& map, const AgingState& state, const int64_t* ids, int64_t n, int32_t clock) {
  require_slot_ids(ids, n);
  Aging rule(map, state, clock, clock);
  std::vector<int64_t> slots(n);
  find_all_slots(map, ids, n, slots.data());
  for (int64_t k = 0; k < n; ++k) rule.foresee(slots[k], ids[k]);
}

}  // namespace hpcrec

// The slot map on the device: ids found by reading their whole set, missing ones inserted set by set.
//
// A set's ids are 256 bytes, which half a warp reads at once. What is missing is sorted by set, stably, and a warp
// inserts a set's ids one after the other, a way in each lane: so nothing depends on the order of threads.
#include "slots.h"

#include "hpcrec/mix.h"
#include "lanes.h"
#include "primitives.h"

namespace hpcrec::cuda {
namespace {

constexpr int64_t ways = 32;
constexpr unsigned every_lane = 0xffffffffu;
constexpr int set_pack = most_packed<int64_t>;
constexpr unsigned set_lanes = ways / set_pack;
constexpr int sets_a_read = all_lanes / set_lanes;
constexpr int reads_ahead = 4;              // of sets, asked for before the first of them is looked at
constexpr int64_t misses_a_warp = 16;       // sets that begin among so many sorted misses are a warp's
constexpr uint32_t no_set = every_lane;     // sets have numbers of 31 bits
constexpr uint32_t no_victim = every_lane;  // clocks and counts have 31 bits

// Where ids belong.
struct Spread {
  uint64_t n_sets, key;

  __device__ __forceinline__ uint32_t set_of(int64_t id) const {
    return static_cast<uint32_t>(__umul64hi(mix(static_cast<uint64_t>(id) ^ key), n_sets));
  }
};

// The use of a slot: its clock, under LFU below the count of clocks at which it was used.
__device__ __forceinline__ int32_t clock_of(int32_t use) {
  return use;
}
__device__ __forceinline__ int32_t clock_of(int64_t use) {
  return static_cast<int32_t>(use);
}
__device__ __forceinline__ void set_first(int32_t& use, int32_t clock) {
  use = clock;
}
__device__ __forceinline__ void set_first(int64_t& use, int32_t clock) {
  use = int64_t{1} << 32 | clock;
}
__device__ __forceinline__ int32_t used_again(int32_t, int32_t clock) {
  return clock;
}
__device__ __forceinline__ int64_t used_again(int64_t use, int32_t clock) {
  const int64_t count = use >> 32;
  return (count < INT32_MAX ? count + 1 : count) << 32 | clock;
}

// What becomes of slots that were found: nothing, or a use. Threads of one call that use the same slot all write the
// same, since a use is written as a whole, and one at its own clock or before changes nothing.
struct LeaveUses {
  __device__ void operator()(int64_t) const {}
};
template <class U> struct MarkUses {
  U* uses;
  int32_t clock;

  __device__ __forceinline__ void operator()(int64_t slot) const {
    const U use = uses[slot];
    if (clock_of(use) < clock) uses[slot] = used_again(use, clock);
  }
};

// Words of 32 ids: a bit where one is missing, and how many are.
struct Missing {
  uint32_t* words;
  int64_t* counts;
};

// A thread an id, a warp 32 of them, whose sets it reads two at a time.
template <class Mark>
__global__ void __launch_bounds__(block_threads, 1)
    find_each(const int64_t* held, Spread spread, const int64_t* ids, int64_t n, Mark mark, int64_t* slots,
              int64_t* evicted, Missing missing, unsigned* faults) {
  const int64_t i = this_thread();
  const unsigned lane = threadIdx.x % all_lanes;
  if (i - lane >= n) return;
  const int64_t id = i < n ? ids[i] : no_id;
  const uint32_t set = spread.set_of(id);
  int way = -1;
#pragma unroll 1
  for (unsigned read = 0; read < all_lanes / sets_a_read; read += reads_ahead) {
    Pack<int64_t, set_pack> pack[reads_ahead];
    int64_t wanted[reads_ahead];
#pragma unroll
    for (int k = 0; k < reads_ahead; ++k) {
      const int asker = static_cast<int>((read + k) * sets_a_read + lane / set_lanes);
      wanted[k] = __shfl_sync(every_lane, id, asker);
      const int64_t its_set = __shfl_sync(every_lane, set, asker);
      pack[k] = load<int64_t, set_pack>(held + its_set * ways + lane % set_lanes * set_pack);
    }
#pragma unroll
    for (int k = 0; k < reads_ahead; ++k) {
#pragma unroll
      for (int x = 0; x < set_pack; ++x) {
        const unsigned all = __ballot_sync(every_lane, pack[k].x[x] == wanted[k]);
        const unsigned mine = all >> lane % sets_a_read * set_lanes & ((1u << set_lanes) - 1);
        if (lane / sets_a_read == read + k && mine) way = (__ffs(static_cast<int>(mine)) - 1) * set_pack + x;
      }
    }
  }
  if (i < n && id == no_id) note(faults, bad_id);
  const bool found = way >= 0 && id != no_id;
  const int64_t slot = found ? set * ways + way : -1;
  if (found) mark(slot);
  if (i < n) slots[i] = slot;
  if (i < n && evicted) evicted[i] = no_id;
  if (!missing.words) return;
  const unsigned bits = __ballot_sync(every_lane, !found && id != no_id);
  if (lane == 0) {
    missing.words[i / all_lanes] = bits;
    missing.counts[i / all_lanes] = __popc(bits);
  }
}

// ends[w]: missing ids up to the end of word w.
__global__ void __launch_bounds__(block_threads, 1)
    take_missing(Spread spread, const int64_t* ids, int64_t n, const uint32_t* words, const int64_t* ends,
                 uint32_t* sets, uint32_t* numbers) {
  const int64_t i = this_thread();
  if (i >= n) return;
  const uint32_t bits = words[i / all_lanes], own = 1u << (i % all_lanes);
  if (!(bits & own)) return;
  const int64_t at = ends[i / all_lanes] - __popc(bits & ~(own - 1));
  sets[at] = spread.set_of(ids[i]);
  numbers[at] = static_cast<uint32_t>(i);
}

// Lanes with the least of those that are given, or none where nothing is: no_victim.
__device__ __forceinline__ unsigned lanes_of_least(uint32_t given) {
  const uint32_t least = __reduce_min_sync(every_lane, given);
  return __ballot_sync(every_lane, given == least && given != no_victim);
}

// The ways of a set, one in each lane, that are to go first; of which the lowest goes.
__device__ __forceinline__ unsigned victims(int32_t use, int32_t keep_from) {
  return lanes_of_least(use < keep_from ? static_cast<uint32_t>(use) : no_victim);
}
__device__ __forceinline__ unsigned victims(int64_t use, int32_t keep_from) {
  const int32_t clock = clock_of(use);
  const uint32_t count = clock < keep_from ? static_cast<uint32_t>(use >> 32) : no_victim;
  const uint32_t least = __reduce_min_sync(every_lane, count);
  return lanes_of_least(count == least && count != no_victim ? static_cast<uint32_t>(clock) : no_victim);
}

// Missing ids, sorted by set: the place of each among the ids of the call.
struct Misses {
  const uint32_t* sets;
  const uint32_t* numbers;
  int64_t n;
};
// What a call is given and gives.
struct Admission {
  const int64_t* ids;
  int32_t clock, keep_from;
  int64_t* slots;
  int64_t* evicted;
  unsigned long long* n_new;
};

template <class U>
__global__ void __launch_bounds__(block_threads, 1)
    insert_each(int64_t* held, U* uses, Misses from, Admission call, const unsigned* faults) {
  const int64_t begin = this_thread() / all_lanes * misses_a_warp;
  const unsigned lane = threadIdx.x % all_lanes;
  if (begin >= from.n || (*faults & bad_id)) return;

  // 32 misses from `base` on, one in each lane.
  int64_t base = begin, its_id = no_id;
  uint32_t its_set = no_set, its_number = 0;
  const auto take = [&](int64_t at) {
    base = at;
    const bool there = at + lane < from.n;
    its_set = there ? from.sets[at + lane] : no_set;
    its_number = there ? from.numbers[at + lane] : 0;
    its_id = there ? call.ids[its_number] : no_id;
  };
  take(begin);
  uint32_t before = __shfl_sync(every_lane, its_set, static_cast<int>(lane) - 1);
  if (lane == 0) before = begin == 0 ? no_set : from.sets[begin - 1];
  unsigned heads = __ballot_sync(every_lane, lane < misses_a_warp && its_set != no_set && its_set != before);
  unsigned n_new = 0;
  while (heads) {
    const int first = __ffs(static_cast<int>(heads)) - 1;
    heads &= heads - 1;
    const uint32_t set = __shfl_sync(every_lane, its_set, first);
    const int64_t slot = set * ways + lane;
    int64_t own = held[slot];
    U use = uses[slot];
    bool changed = false;
    for (int64_t j = begin + first;; ++j) {
      if (j - base == all_lanes) take(j);  // of the last set alone: those before end within the first 32
      const int at = static_cast<int>(j - base);
      if (__shfl_sync(every_lane, its_set, at) != set) break;
      const int64_t id = __shfl_sync(every_lane, its_id, at);
      const uint32_t number = __shfl_sync(every_lane, its_number, at);
      unsigned takes = __ballot_sync(every_lane, own == id);
      const bool fresh = !takes;  // else it was given twice
      if (!takes) takes = __ballot_sync(every_lane, own == no_id);
      if (!takes) takes = victims(use, call.keep_from);
      if (!takes) continue;
      n_new += fresh;
      if (lane + 1 != static_cast<unsigned>(__ffs(static_cast<int>(takes)))) continue;
      call.slots[number] = slot;
      if (!fresh) continue;
      call.evicted[number] = own;
      own = id;
      set_first(use, call.clock);
      changed = true;
    }
    if (changed) {
      held[slot] = own;
      uses[slot] = use;
    }
  }
  if (lane == 0 && n_new) atomicAdd(call.n_new, static_cast<unsigned long long>(n_new));
}

template <class U>
__global__ void __launch_bounds__(block_threads, 1)
    touch_each(MarkUses<U> mark, int64_t capacity, const int64_t* slots, int64_t n, unsigned* faults) {
  const int64_t i = this_thread();
  if (i >= n) return;
  const int64_t slot = slots[i];
  if (below(slot, capacity)) mark(slot);
  else if (slot != -1) note(faults, bad_slot);
}

__global__ void __launch_bounds__(block_threads, 1)
    empty_each(int64_t* held, const int64_t* slots, int64_t n, const unsigned* faults) {
  const int64_t i = this_thread();
  if (i >= n || (*faults & bad_id)) return;
  if (slots[i] >= 0) held[slots[i]] = no_id;
}

Spread spread_of(const Slots& map) {
  return {static_cast<uint64_t>(map.capacity / ways), mix(map.seed)};
}
}  // namespace

void find_slots(const Slots& map, const int64_t* ids, int64_t n, int64_t* slots, const Queue& queue) {
  launch("find_slots", find_each<LeaveUses>, blocks_for(n), 1, block_threads, queue.stream, map.ids, spread_of(map),
         ids, n, LeaveUses{}, slots, nullptr, Missing{nullptr, nullptr}, queue.faults);
}

template <class U>
int64_t admit_slots(const Slots& map, U* uses, const int64_t* ids, int64_t n, int32_t clock, int32_t keep_from,
                    int64_t* slots, int64_t* evicted, const Queue& queue) {
  if (n == 0) return 0;
  const Spread spread = spread_of(map);
  const int64_t n_words = (n + all_lanes - 1) / all_lanes;
  const Scratch<uint32_t> words(n_words, queue.stream);
  const Scratch<int64_t> ends(n_words, queue.stream);
  launch("admit_slots: find", find_each<MarkUses<U>>, blocks_for(n), 1, block_threads, queue.stream, map.ids, spread,
         ids, n, MarkUses<U>{uses, clock}, slots, evicted, Missing{words.data(), ends.data()}, queue.faults);
  inclusive_sum(ends.data(), n_words, ends.data(), queue);
  int64_t n_missing = 0;
  copy_to_host(&n_missing, ends.data() + n_words - 1, sizeof n_missing, queue.stream);
  if (n_missing == 0) return 0;

  const Scratch<uint32_t> sets(n_missing, queue.stream), numbers(n_missing, queue.stream);
  const Scratch<uint32_t> sorted_sets(n_missing, queue.stream), sorted_numbers(n_missing, queue.stream);
  const Scratch<unsigned long long> count(1, queue.stream);
  zero(count.data(), sizeof(unsigned long long), queue.stream);
  launch("admit_slots: missing", take_missing, blocks_for(n), 1, block_threads, queue.stream, spread, ids, n,
         words.data(), ends.data(), sets.data(), numbers.data());
  sort_pairs(sets.data(), numbers.data(), n_missing, bits_below(static_cast<int64_t>(spread.n_sets)),
             sorted_sets.data(), sorted_numbers.data(), queue);
  const int64_t n_warps = (n_missing + misses_a_warp - 1) / misses_a_warp;
  launch("admit_slots: insert", insert_each<U>, blocks_for(n_warps * all_lanes), 1, block_threads, queue.stream,
         map.ids, uses, Misses{sorted_sets.data(), sorted_numbers.data(), n_missing},
         Admission{ids, clock, keep_from, slots, evicted, count.data()}, queue.faults);
  unsigned long long n_new = 0;
  copy_to_host(&n_new, count.data(), sizeof n_new, queue.stream);
  return static_cast<int64_t>(n_new);
}

template <class U>
void touch_slots(U* uses, int64_t capacity, const int64_t* slots, int64_t n, int32_t clock, const Queue& queue) {
  launch("touch_slots", touch_each<U>, blocks_for(n), 1, block_threads, queue.stream, MarkUses<U>{uses, clock},
         capacity, slots, n, queue.faults);
}

void remove_slots(const Slots& map, const int64_t* ids, int64_t n, int64_t* slots, const Queue& queue) {
  find_slots(map, ids, n, slots, queue);
  launch("remove_slots", empty_each, blocks_for(n), 1, block_threads, queue.stream, map.ids, slots, n, queue.faults);
}

template int64_t admit_slots(const Slots&, int32_t*, const int64_t*, int64_t, int32_t, int32_t, int64_t*, int64_t*,
                             const Queue&);
template int64_t admit_slots(const Slots&, int64_t*, const int64_t*, int64_t, int32_t, int32_t, int64_t*, int64_t*,
                             const Queue&);
template void touch_slots(int32_t*, int64_t, const int64_t*, int64_t, int32_t, const Queue&);
template void touch_slots(int64_t*, int64_t, const int64_t*, int64_t, int32_t, const Queue&);

}  // namespace hpcrec::cuda

// Grouping by a stable sort, and seeded functions of ids, on the device.
#include "ids.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hpcrec/feistel.h"
#include "hpcrec/mix.h"
#include "lanes.h"
#include "primitives.h"

namespace hpcrec::cuda {
namespace {

constexpr int64_t few_ids = 4096;        // sorted as they are: to look for narrower keys would take longer
constexpr int64_t narrowing_blocks = 8;  // a multiprocessor

// The ids' low halves, and in two words every bit that an id has.
__global__ void __launch_bounds__(block_threads, 1)
    narrow_ids(const int64_t* ids, int64_t n, uint32_t* keys, unsigned* bits) {
  const int64_t n_threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  unsigned low = 0, high = 0;
#pragma unroll 4
  for (int64_t i = this_thread(); i < n; i += n_threads) {
    const auto id = static_cast<uint64_t>(ids[i]);
    keys[i] = static_cast<uint32_t>(id);
    low |= static_cast<unsigned>(id);
    high |= static_cast<unsigned>(id >> 32);
  }
  const int lane = static_cast<int>(threadIdx.x % all_lanes);
#pragma unroll
  for (int other = 16; other > 0; other /= 2) {
    low |= __shfl_sync(0xffffffffu, low, lane ^ other, 32);
    high |= __shfl_sync(0xffffffffu, high, lane ^ other, 32);
  }
  if (lane != 0) return;
  if (low) atomicOr(bits, low);
  if (high) atomicOr(bits + 1, high);
}

// The number of each bag that is not empty, where it begins: what is behind, up to the next, is of that bag. Bad
// offsets are noted by check_offsets.
__global__ void __launch_bounds__(block_threads, 1)
    mark_bags(const int64_t* offsets, int64_t n_bags, int64_t n, uint32_t* bags) {
  const int64_t b = this_thread();
  if (b >= n_bags) return;
  const int64_t first = offsets[b];
  if (first < offsets[b + 1] && below(first, n)) bags[first] = static_cast<uint32_t>(b);
}

// 1 where a run of equal ids begins.
template <class Key>
__global__ void __launch_bounds__(block_threads, 1) mark_heads(const Key* sorted, int64_t n, uint32_t* head) {
  const int64_t i = this_thread();
  if (i < n) head[i] = i == 0 || sorted[i] != sorted[i - 1];
}

// From sorted ids, what came with them, and the number, from 1, of the distinct id that each is.
template <class Key> struct Sorted {
  const Key* ids;
  const uint32_t* numbers;
  const uint32_t* rank;
  int64_t n;
};

template <class Key>
__global__ void __launch_bounds__(block_threads, 1)
    write_groups(Sorted<Key> from, int64_t* unique, int64_t* segments, int64_t* order) {
  const int64_t i = this_thread();
  if (i >= from.n) return;
  const int64_t u = int64_t{from.rank[i]} - 1;
  if (i == 0 || from.rank[i - 1] <= u) {
    unique[u] = static_cast<int64_t>(from.ids[i]);
    segments[u] = i;
  }
  if (i == from.n - 1) segments[u + 1] = from.n;
  order[i] = from.numbers[i];
}

template <class Key>
__global__ void __launch_bounds__(block_threads, 1) write_inverse(Sorted<Key> from, int64_t* unique, int64_t* inverse) {
  const int64_t i = this_thread();
  if (i >= from.n) return;
  const int64_t u = int64_t{from.rank[i]} - 1;
  if (i == 0 || from.rank[i - 1] <= u) unique[u] = static_cast<int64_t>(from.ids[i]);
  inverse[from.numbers[i]] = u;
}

__global__ void __launch_bounds__(block_threads, 1)
    key_parts(const int32_t* part, int64_t n, int64_t n_parts, uint32_t* keys, unsigned* faults) {
  const int64_t i = this_thread();
  if (i >= n) return;
  const bool good = below(part[i], n_parts);
  if (!good) note(faults, bad_part);
  keys[i] = good ? static_cast<uint32_t>(part[i]) : 0;
}

__device__ __forceinline__ int64_t first_at_least(const uint32_t* sorted, int64_t n, int64_t value) {
  int64_t low = 0, high = n;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

__global__ void __launch_bounds__(block_threads, 1)
    write_parts(const uint32_t* sorted, const uint32_t* numbers, int64_t n, int64_t n_parts, int64_t* counts,
                int64_t* order) {
  const int64_t i = this_thread();
  if (i < n) order[i] = numbers[i];
  if (i < n_parts) counts[i] = first_at_least(sorted, n, i + 1) - first_at_least(sorted, n, i);
}

__global__ void __launch_bounds__(block_threads, 1)
    permute_each(const int64_t* ids, int64_t n, Feistel net, uint64_t bound, bool inverse, int64_t* out,
                 unsigned* faults) {
  const int64_t i = this_thread();
  if (i >= n) return;
  if (!below(ids[i], static_cast<int64_t>(bound))) {
    note(faults, bad_index);
    return;
  }
  uint64_t x = static_cast<uint64_t>(ids[i]);
  do {  // walks the cycle until it is back below the bound: still a bijection
    x = inverse ? net.backward(x) : net.forward(x);
  } while (x >= bound);
  out[i] = static_cast<int64_t>(x);
}

__global__ void __launch_bounds__(block_threads, 1)
    hash_each(const int64_t* ids, int64_t n, uint64_t bound, uint64_t key, int64_t* out) {
  const int64_t i = this_thread();
  if (i < n) out[i] = static_cast<int64_t>(__umul64hi(mix(static_cast<uint64_t>(ids[i]) ^ key), bound));
}

template <class T>
__global__ void __launch_bounds__(block_threads, 1)
    draw_elements(uint64_t key, const int64_t* ids, int64_t n, int64_t width, int64_t column_start, double scale,
                  T* out) {
  const int64_t i = this_thread();
  if (i >= n * width) return;
  const uint64_t row_key = mix(static_cast<uint64_t>(ids[i / width]) ^ key);
  const uint64_t x = mix(row_key + golden * static_cast<uint64_t>(column_start + i % width));
  const double u = static_cast<double>(static_cast<int64_t>(x >> 11)) * 0x1p-53;
  out[i] = static_cast<T>((2.0 * u - 1.0) * scale);
}

// Calls write(Sorted) for n ids, of which there is one at least, sorted with their bags where there are offsets, else
// with their positions; returns how many are distinct.
template <class Key, class F>
int64_t sorted_by_key(const Key* keys, int64_t n, int bits, const int64_t* offsets, int64_t n_bags, const Queue& queue,
                      F&& write) {
  const Scratch<Key> sorted(n, queue.stream);
  const Scratch<uint32_t> rank(n, queue.stream), numbers(n, queue.stream);
  if (offsets) {
    const Scratch<uint32_t> bags(n, queue.stream);
    zero(bags.data(), n * static_cast<int64_t>(sizeof(uint32_t)), queue.stream);
    launch("group: bags", mark_bags, blocks_for(n_bags), 1, block_threads, queue.stream, offsets, n_bags, n,
           bags.data());
    inclusive_max(bags.data(), n, bags.data(), queue);
    sort_pairs<Key>(keys, bags.data(), n, bits, sorted.data(), numbers.data(), queue);
  } else {
    sort_numbered(keys, n, bits, sorted.data(), numbers.data(), queue);
  }
  launch("mark_heads", mark_heads<Key>, blocks_for(n), 1, block_threads, queue.stream, sorted.data(), n, rank.data());
  inclusive_sum<uint32_t>(rank.data(), n, rank.data(), queue);
  write(Sorted<Key>{sorted.data(), numbers.data(), rank.data(), n});
  uint32_t n_unique = 0;
  copy_to_host(&n_unique, rank.data() + n - 1, sizeof n_unique, queue.stream);
  return n_unique;
}

// The same by keys of 32 bits where all ids fit, and by as many bits as they have.
template <class F>
int64_t sorted_by_id(const int64_t* ids, int64_t n, const int64_t* offsets, int64_t n_bags, const Queue& queue,
                     F&& write) {
  if (offsets && n_bags >> 32)
    throw std::runtime_error("group: " + std::to_string(n_bags) + " bags; a device takes fewer than 2^32");
  if (n < few_ids) return sorted_by_key(ids, n, 64, offsets, n_bags, queue, write);
  const Scratch<uint32_t> keys(n, queue.stream);
  const Scratch<unsigned> bits(2, queue.stream);
  zero(bits.data(), 2 * sizeof(unsigned), queue.stream);
  launch("narrow_ids", narrow_ids, std::min(blocks_for(n), narrowing_blocks * multiprocessors()), 1, block_threads,
         queue.stream, ids, n, keys.data(), bits.data());
  unsigned found[2] = {0, 0};
  copy_to_host(found, bits.data(), sizeof found, queue.stream);
  const uint64_t all = static_cast<uint64_t>(found[1]) << 32 | found[0];
  const int n_bits = all >> 63 ? 64 : bits_below(static_cast<int64_t>(all) + (all < INT64_MAX));
  if (n_bits <= narrow_bits) return sorted_by_key<uint32_t>(keys.data(), n, n_bits, offsets, n_bags, queue, write);
  return sorted_by_key(ids, n, n_bits, offsets, n_bags, queue, write);
}

}  // namespace

int64_t group(const int64_t* ids, int64_t n, const int64_t* offsets, int64_t n_bags, int64_t* unique, int64_t* segments,
              int64_t* order, const Queue& queue) {
  if (offsets) check_offsets(offsets, n_bags, n, queue);
  if (n == 0) {
    zero(segments, sizeof(int64_t), queue.stream);
    return 0;
  }
  return sorted_by_id(ids, n, offsets, n_bags, queue, [&](const auto& from) {
    launch("group", write_groups<std::decay_t<decltype(*from.ids)>>, blocks_for(n), 1, block_threads, queue.stream,
           from, unique, segments, order);
  });
}

int64_t dedup(const int64_t* ids, int64_t n, int64_t* unique, int64_t* inverse, const Queue& queue) {
  if (n == 0) return 0;
  return sorted_by_id(ids, n, nullptr, 0, queue, [&](const auto& from) {
    launch("dedup", write_inverse<std::decay_t<decltype(*from.ids)>>, blocks_for(n), 1, block_threads, queue.stream,
           from, unique, inverse);
  });
}

void partition(const int32_t* part, int64_t n, int64_t n_parts, int64_t* counts, int64_t* order, const Queue& queue) {
  const Scratch<uint32_t> keys(n, queue.stream), sorted(n, queue.stream), numbers(n, queue.stream);
  launch("partition: parts", key_parts, blocks_for(n), 1, block_threads, queue.stream, part, n, n_parts, keys.data(),
         queue.faults);
  sort_numbered(keys.data(), n, bits_below(n_parts), sorted.data(), numbers.data(), queue);
  launch("partition", write_parts, blocks_for(n < n_parts ? n_parts : n), 1, block_threads, queue.stream, sorted.data(),
         numbers.data(), n, n_parts, counts, order);
}

void permute(const int64_t* ids, int64_t n, int64_t rows, uint64_t seed, bool inverse, int64_t* out,
             const Queue& queue) {
  const uint64_t bound = static_cast<uint64_t>(rows);
  launch("permute", permute_each, blocks_for(n), 1, block_threads, queue.stream, ids, n, Feistel(bound, seed), bound,
         inverse, out, queue.faults);
}

void hash_ids(const int64_t* ids, int64_t n, int64_t rows, uint64_t seed, int64_t* out, const Queue& queue) {
  launch("hash_ids", hash_each, blocks_for(n), 1, block_threads, queue.stream, ids, n, static_cast<uint64_t>(rows),
         mix(seed), out);
}

template <class T>
void init_rows(uint64_t seed, const int64_t* ids, int64_t n, int64_t width, int64_t column_start, double scale, T* out,
               const Queue& queue) {
  launch("init_rows", draw_elements<T>, blocks_for(n * width), 1, block_threads, queue.stream, mix(seed), ids, n, width,
         column_start, scale, out);
}

template void init_rows(uint64_t, const int64_t*, int64_t, int64_t, int64_t, double, float*, const Queue&);
template void init_rows(uint64_t, const int64_t*, int64_t, int64_t, int64_t, double, double*, const Queue&);

}  // namespace hpcrec::cuda

// Grouping by a stable sort, and seeded functions of ids, on the device.
#include "ids.h"

#include "hpcrec/feistel.h"
#include "hpcrec/mix.h"
#include "lanes.h"
#include "primitives.h"

namespace hpcrec::cuda {
namespace {

// 1 where a run of equal ids begins.
__global__ void __launch_bounds__(block_threads, 1) mark_heads(const int64_t* sorted, int64_t n, int64_t* head) {
  const int64_t i = this_thread();
  if (i < n) head[i] = i == 0 || sorted[i] != sorted[i - 1];
}

// The bag of an id: the last that begins at or before it, and is not empty.
__device__ __forceinline__ int64_t bag_of(int64_t at, const int64_t* offsets, int64_t n_bags) {
  int64_t low = 0, high = n_bags;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (offsets[middle + 1] <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

// From sorted ids, their numbers before, and the number, from 1, of the distinct id that each is.
struct Sorted {
  const int64_t* ids;
  const uint32_t* numbers;
  const int64_t* rank;
  int64_t n;
};

__global__ void __launch_bounds__(block_threads, 1) write_groups(Sorted from, const int64_t* offsets, int64_t n_bags,
                                                                 int64_t* unique, int64_t* segments, int64_t* order) {
  const int64_t i = this_thread();
  if (i >= from.n) return;
  const int64_t u = from.rank[i] - 1;
  if (i == 0 || from.rank[i - 1] <= u) {
    unique[u] = from.ids[i];
    segments[u] = i;
  }
  if (i == from.n - 1) segments[u + 1] = from.n;
  const int64_t number = from.numbers[i];
  order[i] = offsets ? bag_of(number, offsets, n_bags) : number;
}

__global__ void __launch_bounds__(block_threads, 1) write_inverse(Sorted from, int64_t* unique, int64_t* inverse) {
  const int64_t i = this_thread();
  if (i >= from.n) return;
  const int64_t u = from.rank[i] - 1;
  if (i == 0 || from.rank[i - 1] <= u) unique[u] = from.ids[i];
  inverse[from.numbers[i]] = u;
}

__global__ void __launch_bounds__(block_threads, 1)
    widen(const int32_t* part, int64_t n, int64_t n_parts, int64_t* out, unsigned* faults) {
  const int64_t i = this_thread();
  if (i >= n) return;
  if (!below(part[i], n_parts)) note(faults, bad_part);
  out[i] = part[i];
}

__device__ __forceinline__ int64_t first_at_least(const int64_t* sorted, int64_t n, int64_t value) {
  int64_t low = 0, high = n;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

__global__ void __launch_bounds__(block_threads, 1)
    write_parts(const int64_t* sorted, const uint32_t* numbers, int64_t n, int64_t n_parts, int64_t* counts,
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

// Calls write(Sorted) for n ids, of which there is one at least; returns how many are distinct.
template <class F> int64_t sorted_by_id(const int64_t* ids, int64_t n, const Queue& queue, F&& write) {
  const Scratch<int64_t> sorted(n, queue.stream), rank(n, queue.stream);
  const Scratch<uint32_t> numbers(n, queue.stream);
  sort_numbered(ids, n, 64, sorted.data(), numbers.data(), queue);
  launch("mark_heads", mark_heads, blocks_for(n), 1, block_threads, queue.stream, sorted.data(), n, rank.data());
  inclusive_sum(rank.data(), n, rank.data(), queue);
  write(Sorted{sorted.data(), numbers.data(), rank.data(), n});
  int64_t n_unique = 0;
  copy_to_host(&n_unique, rank.data() + n - 1, sizeof n_unique, queue.stream);
  return n_unique;
}

}  // namespace

int64_t group(const int64_t* ids, int64_t n, const int64_t* offsets, int64_t n_bags, int64_t* unique, int64_t* segments,
              int64_t* order, const Queue& queue) {
  if (offsets) check_offsets(offsets, n_bags, n, queue);
  if (n == 0) {
    zero(segments, sizeof(int64_t), queue.stream);
    return 0;
  }
  return sorted_by_id(ids, n, queue, [&](const Sorted& from) {
    launch("group", write_groups, blocks_for(n), 1, block_threads, queue.stream, from, offsets, n_bags, unique,
           segments, order);
  });
}

int64_t dedup(const int64_t* ids, int64_t n, int64_t* unique, int64_t* inverse, const Queue& queue) {
  if (n == 0) return 0;
  return sorted_by_id(ids, n, queue, [&](const Sorted& from) {
    launch("dedup", write_inverse, blocks_for(n), 1, block_threads, queue.stream, from, unique, inverse);
  });
}

void partition(const int32_t* part, int64_t n, int64_t n_parts, int64_t* counts, int64_t* order, const Queue& queue) {
  const Scratch<int64_t> wide(n, queue.stream), sorted(n, queue.stream);
  const Scratch<uint32_t> numbers(n, queue.stream);
  launch("partition: parts", widen, blocks_for(n), 1, block_threads, queue.stream, part, n, n_parts, wide.data(),
         queue.faults);
  sort_numbered(wide.data(), n, 64, sorted.data(), numbers.data(), queue);
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

#include "primitives.h"

#include <type_traits>

#include "lanes.h"

#ifdef __CUDACC__
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#else
#include <algorithm>
#include <numeric>
#include <vector>
#endif

namespace hpcrec::cuda {
namespace {

__global__ void __launch_bounds__(block_threads, 1) count_up(uint32_t* out, int64_t n) {
  const int64_t i = this_thread();
  if (i < n) out[i] = static_cast<uint32_t>(i);
}

struct Larger {
  __host__ __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a < b ? b : a; }
};

// CUB of CUDA before 12.8 scans no more; numbers are of 32 bits.
void require_few(int64_t n) {
  if (n >= int64_t{1} << 31)
    throw std::runtime_error(std::to_string(n) + " values to sort or scan; a device takes fewer than 2^31 at a time");
}

__global__ void __launch_bounds__(block_threads, 1)
    check_each(const int64_t* offsets, int64_t n, int64_t end, unsigned* faults) {
  const int64_t i = this_thread();
  if (i > n) return;
  const bool good = i == 0 ? offsets[0] == 0 : offsets[i - 1] <= offsets[i];
  if (!good || (i == n && offsets[i] != end)) note(faults, bad_offsets);
}

#ifdef __CUDACC__
// Calls of CUB come in pairs: one that says how much memory it wants, and one that has it.
template <class F> void with_memory(const char* name, int64_t n, cudaStream_t stream, F&& call) {
  size_t bytes = 0;
  check(call(nullptr, bytes), name, n);
  const Scratch<char> memory(static_cast<int64_t>(bytes), stream);
  check(call(memory.data(), bytes), name, n);
}
#endif

}  // namespace

void check_offsets(const int64_t* offsets, int64_t n, int64_t end, const Queue& queue) {
  launch("check_offsets", check_each, blocks_for(n + 1), 1, block_threads, queue.stream, offsets, n, end, queue.faults);
}

template <class Key>
void sort_pairs(const Key* keys, const uint32_t* numbers, int64_t n, int bits, Key* sorted, uint32_t* sorted_numbers,
                const Queue& queue) {
  require_few(n);
  if (n == 0) return;
#ifdef __CUDACC__
  with_memory("cub::DeviceRadixSort::SortPairs", n, queue.stream, [&](void* memory, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted, numbers, sorted_numbers, n, 0, bits,
                                           queue.stream);
  });
#else
  static_cast<void>(queue);
  // As a radix sort does: by so many bits alone, which are signed where they are all.
  const auto key = [=](int64_t i) {
    const bool all = bits == 8 * static_cast<int>(sizeof(Key));
    return all ? keys[i] : static_cast<Key>(static_cast<uint64_t>(keys[i]) & ((uint64_t{1} << bits) - 1));
  };
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return key(a) < key(b); });
  for (int64_t i = 0; i < n; ++i) {
    sorted[i] = keys[order[i]];
    sorted_numbers[i] = numbers[order[i]];
  }
#endif
}

template <class Key>
void sort_numbered(const Key* keys, int64_t n, int bits, Key* sorted, uint32_t* numbers, const Queue& queue) {
  require_few(n);
  const Scratch<uint32_t> from(n, queue.stream);
  launch("count_up", count_up, blocks_for(n), 1, block_threads, queue.stream, from.data(), n);
  sort_pairs(keys, from.data(), n, bits, sorted, numbers, queue);
}

template <class Word> void inclusive_sum(const Word* in, int64_t n, Word* out, const Queue& queue) {
  require_few(n);
  if (n == 0) return;
  using Unsigned = std::make_unsigned_t<Word>;
  const auto* words = reinterpret_cast<const Unsigned*>(in);
  auto* sums = reinterpret_cast<Unsigned*>(out);
#ifdef __CUDACC__
  with_memory("cub::DeviceScan::InclusiveSum", n, queue.stream, [&](void* memory, size_t& bytes) {
    return cub::DeviceScan::InclusiveSum(memory, bytes, words, sums, n, queue.stream);
  });
#else
  static_cast<void>(queue);
  std::partial_sum(words, words + n, sums);
#endif
}

void inclusive_max(const uint32_t* in, int64_t n, uint32_t* out, const Queue& queue) {
  require_few(n);
  if (n == 0) return;
#ifdef __CUDACC__
  with_memory("cub::DeviceScan::InclusiveScan", n, queue.stream, [&](void* memory, size_t& bytes) {
    return cub::DeviceScan::InclusiveScan(memory, bytes, in, out, Larger{}, n, queue.stream);
  });
#else
  static_cast<void>(queue);
  std::partial_sum(in, in + n, out, Larger{});
#endif
}

#define HPCREC_SORT(KEY)                                                                              \
  template void sort_pairs(const KEY*, const uint32_t*, int64_t, int, KEY*, uint32_t*, const Queue&); \
  template void sort_numbered(const KEY*, int64_t, int, KEY*, uint32_t*, const Queue&);
HPCREC_SORT(uint32_t)
HPCREC_SORT(int64_t)
#undef HPCREC_SORT
template void inclusive_sum(const uint32_t*, int64_t, uint32_t*, const Queue&);
template void inclusive_sum(const int64_t*, int64_t, int64_t*, const Queue&);

}  // namespace hpcrec::cuda

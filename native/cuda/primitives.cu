#include "primitives.h"

#include "lanes.h"

#ifdef __CUDACC__
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#else
#include <algorithm>
#include <numeric>
#endif

namespace hpcrec::cuda {
namespace {

__global__ void __launch_bounds__(block_threads, 1) count_up(uint32_t* out, int64_t n) {
  const int64_t i = this_thread();
  if (i < n) out[i] = static_cast<uint32_t>(i);
}

// CUB of CUDA before 12.8 scans no more; numbers are of 32 bits.
void require_few(int64_t n) {
  if (n >= int64_t{1} << 31)
    throw std::runtime_error(std::to_string(n) + " values to sort or add up; a device takes fewer than 2^31 at a time");
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
void sort_numbered(const Key* keys, int64_t n, int bits, Key* sorted, uint32_t* numbers, const Queue& queue) {
  require_few(n);
  if (n == 0) return;
  const Scratch<uint32_t> from(n, queue.stream);
  launch("count_up", count_up, blocks_for(n), 1, block_threads, queue.stream, from.data(), n);
#ifdef __CUDACC__
  with_memory("cub::DeviceRadixSort::SortPairs", n, queue.stream, [&](void* memory, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted, static_cast<const uint32_t*>(from.data()),
                                           numbers, n, 0, bits, queue.stream);
  });
#else
  static_cast<void>(bits);
  std::stable_sort(from.data(), from.data() + n, [=](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
  for (int64_t i = 0; i < n; ++i) {
    numbers[i] = from.data()[i];
    sorted[i] = keys[numbers[i]];
  }
#endif
}

template void sort_numbered(const uint32_t*, int64_t, int, uint32_t*, uint32_t*, const Queue&);
template void sort_numbered(const int64_t*, int64_t, int, int64_t*, uint32_t*, const Queue&);

void inclusive_sum(const int64_t* in, int64_t n, int64_t* out, const Queue& queue) {
  require_few(n);
  if (n == 0) return;
  const auto* words = reinterpret_cast<const uint64_t*>(in);
  auto* sums = reinterpret_cast<uint64_t*>(out);
#ifdef __CUDACC__
  with_memory("cub::DeviceScan::InclusiveSum", n, queue.stream, [&](void* memory, size_t& bytes) {
    return cub::DeviceScan::InclusiveSum(memory, bytes, words, sums, n, queue.stream);
  });
#else
  static_cast<void>(queue);
  std::partial_sum(words, words + n, sums);
#endif
}

}  // namespace hpcrec::cuda

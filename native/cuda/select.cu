// The largest of many values, and of each vector, on the device.
//
// Of all values, a threshold is found digit by digit of the magnitudes' bits, from counts of each digit. Of a vector, a
// warp finds it bit by bit, and takes what reaches it; of equals the first.
#include <algorithm>
#include <vector>

#include "hpcrec/bits.h"
#include "lanes.h"
#include "messages.h"

namespace hpcrec::cuda {
namespace {

constexpr int magnitude_bits = 31;
constexpr int digit_bits[] = {11, 10, 10};  // exponents make up most of the first, so that few values share one
constexpr int most_digits = 1 << 11;
constexpr int64_t counting_blocks = 4;  // a multiprocessor

// Magnitude where that of NaN is infinite.
__device__ __forceinline__ uint32_t clamped(float x) {
  const uint32_t magnitude = magnitude_of(x);
  return magnitude < infinite_bits ? magnitude : infinite_bits;
}

// Counts digit `magnitude >> shift` of those whose higher digits are `high`.
__global__ void __launch_bounds__(block_threads, 1)
    count_digits(const float* values, int64_t n, int shift, int bits, uint32_t high, unsigned long long* counts) {
  __shared__ unsigned mine[most_digits];
  const int n_digits = 1 << bits;
  for (int d = static_cast<int>(threadIdx.x); d < n_digits; d += static_cast<int>(blockDim.x)) mine[d] = 0;
  __syncthreads();
  const int64_t n_threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = this_thread(); i < n; i += n_threads) {
    const uint32_t magnitude = clamped(values[i]);
    if (magnitude >> shift >> bits == high) atomicAdd(&mine[magnitude >> shift & (n_digits - 1)], 1u);
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < n_digits; d += static_cast<int>(blockDim.x))
    if (mine[d]) atomicAdd(counts + d, static_cast<unsigned long long>(mine[d]));
}

__device__ __forceinline__ int64_t sum_of_warp(int64_t x, unsigned lane) {
#pragma unroll
  for (int other = 16; other > 0; other /= 2) x += __shfl_sync(0xffffffffu, x, static_cast<int>(lane) ^ other, 32);
  return x;
}

// How many of a vector's magnitudes reach `least`.
__device__ __forceinline__ int64_t reaching(const float* of, int64_t width, uint32_t least, unsigned lane) {
  int64_t found = 0;
  for (int64_t i = lane; i < width; i += all_lanes) found += clamped(of[i]) >= least;
  return sum_of_warp(found, lane);
}

__global__ void __launch_bounds__(block_threads, 1)
    take_each(const float* values, int64_t n_vectors, int64_t width, int64_t keep, int64_t* positions, float* chosen) {
  const int64_t v = this_thread() / all_lanes;
  const unsigned lane = threadIdx.x % all_lanes, before = (1u << lane) - 1;
  if (v >= n_vectors) return;
  const float* of = values + v * width;
  uint32_t least = 0;
  for (int bit = magnitude_bits - 1; bit >= 0; --bit)
    if (reaching(of, width, least | 1u << bit, lane) >= keep) least |= 1u << bit;
  int64_t equals = keep - reaching(of, width, least + 1, lane), at = v * keep;  // of those that equal it
  for (int64_t first = 0; first < width; first += all_lanes) {
    const int64_t i = first + lane;
    const float x = i < width ? of[i] : 0.0f;
    const uint32_t magnitude = clamped(x);
    const unsigned equal = __ballot_sync(0xffffffffu, i < width && magnitude == least);
    const bool takes = i < width && (magnitude > least || (magnitude == least && __popc(equal & before) < equals));
    const unsigned taken = __ballot_sync(0xffffffffu, takes);
    if (takes) {
      positions[at + __popc(taken & before)] = v * width + i;
      chosen[at + __popc(taken & before)] = x;
    }
    equals -= __popc(equal);
    at += __popc(taken);
  }
}

}  // namespace

float threshold_of(const float* values, int64_t n, int64_t keep, const Queue& queue) {
  const Scratch<unsigned long long> counts(most_digits, queue.stream);
  const int64_t blocks = std::min(blocks_for(n), counting_blocks * multiprocessors());
  uint32_t found = 0;
  int shift = magnitude_bits;
  for (const int bits : digit_bits) {
    shift -= bits;
    std::vector<unsigned long long> here(size_t{1} << bits);
    const auto bytes = static_cast<int64_t>(here.size() * sizeof here[0]);
    zero(counts.data(), bytes, queue.stream);
    launch("threshold_of", count_digits, blocks, 1, block_threads, queue.stream, values, n, shift, bits, found,
           counts.data());
    copy_to_host(here.data(), counts.data(), bytes, queue.stream);
    uint32_t digit = static_cast<uint32_t>(here.size()) - 1;
    for (; digit > 0 && static_cast<int64_t>(here[digit]) < keep; --digit) keep -= static_cast<int64_t>(here[digit]);
    found = found << bits | digit;
  }
  return float_of(found);
}

void take_largest(const float* values, int64_t n_vectors, int64_t width, int64_t keep, int64_t* positions,
                  float* chosen, const Queue& queue) {
  launch("take_largest", take_each, blocks_for(n_vectors * all_lanes), 1, block_threads, queue.stream, values,
         n_vectors, width, keep, positions, chosen);
}

}  // namespace hpcrec::cuda

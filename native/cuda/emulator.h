// CUDA without CUDA: kernels compiled for the host and run there, thread by thread, so that their arithmetic of indices
// is tested on machines that have no GPU. Only what the kernels here use.
//
// A block's threads are fibers that change places at barriers and warp functions alone, in one order or, where
// HPCREC_EMULATED_ORDER is `reversed`, in the other; blocks run one after the other. A barrier that not all of its
// threads come to is found and refused. Races between barriers are not; compute-sanitizer finds those in
// shared memory, on a GPU.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static  // of the block that runs: there is one at a time

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
using cudaStream_t = void*;

namespace hpcrec::emulated {

constexpr unsigned warp_lanes = 32;

struct Place {
  dim3 thread, block, block_dim, grid_dim;
};
extern Place here;  // of the thread that runs

// Runs body for every thread of every block; throws std::logic_error where some wait for others that never come.
void run(dim3 grid, dim3 block, const std::function<void()>& body);
void block_barrier();
// Hands `value` (of at most 8 bytes) to the lanes of the mask and waits for theirs; gives all 32 lanes' values.
const uint64_t* exchange(unsigned mask, uint64_t value);

// For tests of the emulator: a kernel with a warp barrier that half of its lanes come to (0), all but one (1), or that
// a lane comes to with a mask that it is not in (2).
void run_wrong(int which);

template <class T> uint64_t as_bits(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T> T of_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned lane() {
  return here.thread.x % warp_lanes;
}
}  // namespace hpcrec::emulated

#define threadIdx (hpcrec::emulated::here.thread)
#define blockIdx (hpcrec::emulated::here.block)
#define blockDim (hpcrec::emulated::here.block_dim)
#define gridDim (hpcrec::emulated::here.grid_dim)

inline void __syncthreads() {
  hpcrec::emulated::block_barrier();
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  hpcrec::emulated::exchange(mask, 0);
}
template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const auto* all = hpcrec::emulated::exchange(mask, hpcrec::emulated::as_bits(value));
  const unsigned first = hpcrec::emulated::lane() & ~(static_cast<unsigned>(width) - 1);
  return hpcrec::emulated::of_bits<T>(all[first + (static_cast<unsigned>(source) & (width - 1))]);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const auto* all = hpcrec::emulated::exchange(mask, predicate != 0);
  unsigned ballot = 0;
  for (unsigned i = 0; i < hpcrec::emulated::warp_lanes; ++i)
    if (mask >> i & 1 && all[i]) ballot |= 1u << i;
  return ballot;
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  const auto* all = hpcrec::emulated::exchange(mask, value);
  uint64_t least = value;
  for (unsigned i = 0; i < hpcrec::emulated::warp_lanes; ++i)
    if (mask >> i & 1 && all[i] < least) least = all[i];
  return static_cast<unsigned>(least);
}
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
template <class T> T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}
inline unsigned atomicOr(unsigned* at, unsigned value) {
  const unsigned before = *at;
  *at |= value;
  return before;
}

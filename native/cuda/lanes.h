// How a warp's lanes share vectors: a group of lanes takes one vector, each lane packs of its columns.
//
// Memory is asked for in packs of 16 bytes where every vector begins on one, else element by element. A vector that is
// wider than the group's packs is cut into tiles of columns, which are worked on apart: blocks of another grid row.
#pragma once
#include <cstring>

#include "device.h"
#include "hpcrec/half_rows.h"

namespace hpcrec::cuda {

template <class T, int N> struct alignas(sizeof(T) * N) Pack {
  T x[N];
};
template <class T> constexpr int most_packed = 16 / sizeof(T);
constexpr int rows_ahead = 4;  // asked for before the first of them is added, by each group

// Lanes and tiles of vectors of some width.
struct Layout {
  int64_t width;
  unsigned lanes;  // of a group: a power of 2, up to 32

  __host__ __device__ unsigned groups(unsigned threads) const { return threads / lanes; }
};

inline Layout layout_of(int64_t width, int pack) {
  const int64_t packs = (width + pack - 1) / pack;
  unsigned lanes = 1;
  while (lanes < all_lanes && lanes < packs) lanes *= 2;
  return {width, lanes};
}
inline unsigned tiles_of(const Layout& layout, int pack) {
  const int64_t columns = static_cast<int64_t>(layout.lanes) * pack;
  return static_cast<unsigned>((layout.width + columns - 1) / columns);
}
inline bool packable(const void* base, int64_t width, int64_t item_bytes) {
  return reinterpret_cast<uintptr_t>(base) % 16 == 0 && width * item_bytes % 16 == 0;
}

// This thread's place in its group, and the group's among all of the grid row.
struct Member {
  unsigned lane, mask;
  int64_t group;

  __device__ explicit Member(const Layout& layout) {
    const unsigned in_warp = threadIdx.x % all_lanes;
    lane = threadIdx.x % layout.lanes;
    mask = (layout.lanes == all_lanes ? 0xffffffffu : (1u << layout.lanes) - 1) << (in_warp - lane);
    group = static_cast<int64_t>(blockIdx.x) * layout.groups(blockDim.x) + threadIdx.x / layout.lanes;
  }
};

template <class T, int N> __device__ __forceinline__ Pack<T, N> zeros() {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.x[i] = T{0};
  return pack;
}
// On the host as bytes: where an unaligned way is beside it (load_anywhere), GCC 13 merges the two and takes both for
// aligned.
template <class T, int N> __device__ __forceinline__ Pack<T, N> load(const T* from) {
#ifdef HPCREC_EMULATED
  Pack<T, N> pack;
  std::memcpy(&pack, from, sizeof pack);
  return pack;
#else
  return *reinterpret_cast<const Pack<T, N>*>(from);
#endif
}
template <class T, int N> __device__ __forceinline__ void store(T* to, const Pack<T, N>& pack) {
#ifdef HPCREC_EMULATED
  std::memcpy(to, &pack, sizeof pack);
#else
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
#endif
}
// The same to the device's own memory, in one instruction: where each element was chosen before, nvcc stores them one
// by one, and a warp then writes every line four times.
template <class T, int N> __device__ __forceinline__ void store_at_once(T* to, const Pack<T, N>& pack) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(pack) == sizeof(uint4)) {
    uint4 bits;
    std::memcpy(&bits, &pack, sizeof bits);
    __stwb(reinterpret_cast<uint4*>(to), bits);
    return;
  }
#endif
  store<T, N>(to, pack);
}
// The same where a vector may begin at any element.
template <class T, int N> __device__ __forceinline__ Pack<T, N> load_anywhere(const T* from) {
  if constexpr (N > 1) {
    if (reinterpret_cast<uintptr_t>(from) % sizeof(Pack<T, N>) != 0) {
      Pack<T, N> pack;
#pragma unroll
      for (int i = 0; i < N; ++i) pack.x[i] = from[i];
      return pack;
    }
  }
  return load<T, N>(from);
}
template <class T, int N> __device__ __forceinline__ void store_anywhere(T* to, const Pack<T, N>& pack) {
  if constexpr (N > 1) {
    if (reinterpret_cast<uintptr_t>(to) % sizeof(Pack<T, N>) != 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) to[i] = pack.x[i];
      return;
    }
  }
  store<T, N>(to, pack);
}
// The same in packs of 16 bytes, which a vector may begin on where a larger pack may not.
template <class T, int N> __device__ __forceinline__ void store_packs(T* to, const Pack<T, N>& pack) {
  constexpr int M = N < most_packed<T> ? N : most_packed<T>;
#pragma unroll
  for (int first = 0; first < N; first += M) {
    Pack<T, M> part;
#pragma unroll
    for (int i = 0; i < M; ++i) part.x[i] = pack.x[first + i];
    store_anywhere<T, M>(to + first, part);
  }
}
// sum += x, or sum += weight * x: each product and each sum rounds once (no contraction, by the compiler's flags).
// x may be of halves.
template <class T, class E, int N> __device__ __forceinline__ void add(Pack<T, N>& sum, const Pack<E, N>& x) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum.x[i] += widened(x.x[i]);
}
template <class T, class E, int N> __device__ __forceinline__ void add(Pack<T, N>& sum, const Pack<E, N>& x, T weight) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum.x[i] += weight * widened(x.x[i]);
}
template <class T, int N> __device__ __forceinline__ Pack<T, N> scaled(const Pack<T, N>& x, T scale) {
  Pack<T, N> y;
#pragma unroll
  for (int i = 0; i < N; ++i) y.x[i] = scale * x.x[i];
  return y;
}

// A thread for each of n things, of blocks_for(n) blocks.
__device__ __forceinline__ int64_t this_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
inline int64_t blocks_for(int64_t n) {
  return (n + block_threads - 1) / block_threads;
}

// What a caller does not check: whether a value lies in [0, limit), and a vector in an array of `size` elements.
__device__ __forceinline__ bool below(int64_t value, int64_t limit) {
  return static_cast<uint64_t>(value) < static_cast<uint64_t>(limit);
}
__device__ __forceinline__ bool fits(int64_t start, int64_t width, int64_t size) {
  return start >= 0 && width <= size && start <= size - width;
}
__device__ __forceinline__ void note(unsigned* faults, unsigned fault) {
  atomicOr(faults, fault);
}

}  // namespace hpcrec::cuda

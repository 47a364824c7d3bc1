// Values marked by a threshold, a bit each, and put one after the other, on the device.
//
// A block of threads takes a tile of values. Marking reads them once, and counts those of each tile; the counts are
// added up; then the marks say which values are read again. So the order of what is put is that of its positions.
#include "hpcrec/bits.h"
#include "lanes.h"
#include "messages.h"
#include "primitives.h"

namespace hpcrec::cuda {
namespace {

constexpr int word_bits = 32;
constexpr int warp_values = 512;  // of a tile: 16 words of marks
constexpr int tile_warps = static_cast<int>(block_threads / all_lanes);
constexpr int tile_values = warp_values * tile_warps;
constexpr int tile_words = tile_values / word_bits;
constexpr unsigned whole_warp = 0xffffffffu;

int64_t tiles_in(int64_t n) {
  return (n + tile_values - 1) / tile_values;
}
// Marks come in words of 64.
__host__ __device__ inline int64_t words_in(int64_t n) {
  return (n + 63) / 64 * 2;
}

__device__ __forceinline__ int sum_over_warp(int x, unsigned lane) {
#pragma unroll
  for (int other = 16; other > 0; other /= 2) x += __shfl_sync(whole_warp, x, static_cast<int>(lane) ^ other, 32);
  return x;
}

// Values from `at`, zeros behind the n.
template <int N> __device__ __forceinline__ Pack<float, N> load_some(const float* values, int64_t at, int64_t n) {
  if (at + N <= n) return load<float, N>(values + at);
  Pack<float, N> x = zeros<float, N>();
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (at + i < n) x.x[i] = values[at + i];
  return x;
}
template <int N>
__device__ __forceinline__ void store_some(float* values, int64_t at, int64_t n, const Pack<float, N>& x) {
  if (at + N <= n) {
    store<float, N>(values + at, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (at + i < n) values[at + i] = x.x[i];
}

// Marks values that reach a magnitude; with a gradient, sums, which values become. counts: of each tile.
template <int N, bool SUM>
__global__ void __launch_bounds__(block_threads, 1)
    mark_tiles(const float* gradient, const float* read, float* written, int64_t n, uint32_t least, uint32_t* marks,
               int64_t* counts) {
  constexpr int step = N * static_cast<int>(all_lanes), packs = 16 / N, words_a_step = step / word_bits;
  constexpr int turns = warp_values / step / packs;
  __shared__ int in_warp[tile_warps];
  const unsigned lane = threadIdx.x % all_lanes, warp = threadIdx.x / all_lanes;
  const int64_t first = blockIdx.x * static_cast<int64_t>(tile_values) + warp * static_cast<int64_t>(warp_values);
  int found = 0;
#pragma unroll
  for (int turn = 0; turn < turns; ++turn) {
    Pack<float, N> x[packs], g[packs];
    const int64_t from = first + turn * packs * step + lane * N;
    if (first + warp_values <= n) {  // without a branch between the loads
#pragma unroll
      for (int j = 0; j < packs; ++j) {
        x[j] = load<float, N>(read + from + j * step);
        if constexpr (SUM) g[j] = load<float, N>(gradient + from + j * step);
      }
    } else {
#pragma unroll
      for (int j = 0; j < packs; ++j) {
        x[j] = load_some<N>(read, from + j * step, n);
        if constexpr (SUM) g[j] = load_some<N>(gradient, from + j * step, n);
      }
    }
#pragma unroll
    for (int j = 0; j < packs; ++j) {
      const int64_t at = from + j * step;
      if constexpr (SUM) {
        add(x[j], g[j]);
        store_some<N>(written, at, n, x[j]);
      }
      uint32_t bits = 0;
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (at + i < n && magnitude_of(x[j].x[i]) >= least) bits |= 1u << i;
      found += __popc(bits);
      // Lanes whose values share a word put it together.
      constexpr int lanes_a_word = word_bits / N;
      bits <<= lane % lanes_a_word * N;
#pragma unroll
      for (int other = lanes_a_word / 2; other > 0; other /= 2)
        bits |= __shfl_sync(whole_warp, bits, static_cast<int>(lane) ^ other, 32);
      const int64_t word = (first + (turn * packs + j) * step) / word_bits + lane / lanes_a_word;
      static_assert(words_a_step * lanes_a_word == static_cast<int>(all_lanes));
      if (lane % lanes_a_word == 0 && word < words_in(n)) marks[word] = bits;
    }
  }
  found = sum_over_warp(found, lane);
  if (lane == 0) in_warp[warp] = found;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int64_t sum = 0;
  for (int w = 0; w < tile_warps; ++w) sum += in_warp[w];
  counts[blockIdx.x] = sum;
}

// How many of each tile's values are marked: a warp a tile.
__global__ void __launch_bounds__(block_threads, 1)
    count_tiles(const uint32_t* marks, int64_t n_words, int64_t n_tiles, int64_t* counts) {
  const int64_t this_tile = this_thread() / all_lanes;
  const unsigned lane = threadIdx.x % all_lanes;
  if (this_tile >= n_tiles) return;
  int found = 0;
#pragma unroll
  for (int j = 0; j < tile_words / static_cast<int>(all_lanes); ++j) {
    const int64_t word = this_tile * tile_words + j * static_cast<int>(all_lanes) + lane;
    if (word < n_words) found += __popc(marks[word]);
  }
  found = sum_over_warp(found, lane);
  if (lane == 0) counts[this_tile] = found;
}

// ends[tile]: marked values up to its end. Those that are cut become zero. Places of a tile's marked values are listed
// in shared memory, so that lanes next to each other read, and write, what lies close.
__global__ void __launch_bounds__(block_threads, 1)
    take_tiles(const float* values, float* cut, int64_t n, const uint32_t* marks, const int64_t* ends, int64_t n_tiles,
               int64_t k, int64_t* positions, float* chosen, unsigned* faults) {
  __shared__ uint16_t places[tile_values];
  __shared__ int in_warp[tile_warps];
  constexpr int warp_words = warp_values / word_bits;
  const unsigned lane = threadIdx.x % all_lanes, warp = threadIdx.x / all_lanes;
  const int64_t first = blockIdx.x * static_cast<int64_t>(tile_values);
  const int64_t word = first / word_bits + warp * warp_words + lane;
  uint32_t bits = lane < warp_words && word < words_in(n) ? marks[word] : 0;
  // Bits behind the values stand for none.
  if (word * word_bits + word_bits > n) bits &= word * word_bits < n ? (1u << (n - word * word_bits)) - 1 : 0;
  const int own = __popc(bits);
  int up_to = own;
#pragma unroll
  for (int other = 1; other < warp_words; other *= 2) {
    const int before = __shfl_sync(whole_warp, up_to, static_cast<int>(lane) - other, 32);
    if (static_cast<int>(lane) >= other) up_to += before;
  }
  if (lane == warp_words - 1) in_warp[warp] = up_to;
  __syncthreads();
  int begin = up_to - own, all = 0;
#pragma unroll
  for (int w = 0; w < tile_warps; ++w) {
    if (w < static_cast<int>(warp)) begin += in_warp[w];
    all += in_warp[w];
  }
  const unsigned first_place = (warp * warp_words + lane) * word_bits;
  for (unsigned place = first_place; bits; bits >>= 1, ++place)
    if (bits & 1) places[begin++] = static_cast<uint16_t>(place);
  __syncthreads();
  if (blockIdx.x == n_tiles - 1 && threadIdx.x == 0 && ends[n_tiles - 1] != k) note(faults, bad_mask);
  const int64_t before = ends[blockIdx.x] - all;
  for (int j = static_cast<int>(threadIdx.x); j < all; j += static_cast<int>(block_threads)) {
    if (!below(before + j, k)) continue;
    const int64_t at = first + places[j];
    positions[before + j] = at;
    chosen[before + j] = values[at];
    if (cut) cut[at] = 0;
  }
}

int64_t mark(const float* gradient, const float* read, float* written, int64_t n, float tau, uint64_t* marks,
             const Queue& queue) {
  if (n == 0) return 0;
  const int64_t n_tiles = tiles_in(n);
  const Scratch<int64_t> counts(n_tiles, queue.stream);
  const auto with = [&](auto kernel) {
    launch("mark", kernel, n_tiles, 1, block_threads, queue.stream, gradient, read, written, n, magnitude_of(tau),
           reinterpret_cast<uint32_t*>(marks), counts.data());
  };
  const auto packs = [](const float* array) { return reinterpret_cast<uintptr_t>(array) % 16 == 0; };
  const bool packed = packs(read) && packs(gradient) && packs(written);
  if (gradient) with(packed ? mark_tiles<4, true> : mark_tiles<1, true>);
  else with(packed ? mark_tiles<4, false> : mark_tiles<1, false>);
  inclusive_sum(counts.data(), n_tiles, counts.data(), queue);
  int64_t found = 0;
  copy_to_host(&found, counts.data() + n_tiles - 1, sizeof found, queue.stream);
  return found;
}

void take(const float* values, float* cut, int64_t n, const uint64_t* marks, int64_t k, int64_t* positions,
          float* chosen, const Queue& queue) {
  if (n == 0) return;
  const int64_t n_tiles = tiles_in(n);
  const Scratch<int64_t> ends(n_tiles, queue.stream);
  const auto* words = reinterpret_cast<const uint32_t*>(marks);
  launch("take: counts", count_tiles, blocks_for(n_tiles * all_lanes), 1, block_threads, queue.stream, words,
         words_in(n), n_tiles, ends.data());
  inclusive_sum(ends.data(), n_tiles, ends.data(), queue);
  launch("take", take_tiles, n_tiles, 1, block_threads, queue.stream, values, cut, n, words, ends.data(), n_tiles, k,
         positions, chosen, queue.faults);
}

}  // namespace

int64_t mark_above(const float* values, int64_t n, float tau, uint64_t* marks, const Queue& queue) {
  return mark(nullptr, values, nullptr, n, tau, marks, queue);
}

int64_t mark_sum(const float* gradient, float* residual, int64_t n, float tau, uint64_t* marks, const Queue& queue) {
  return mark(gradient, residual, residual, n, tau, marks, queue);
}

void take_marked(const float* values, int64_t n, const uint64_t* marks, int64_t k, int64_t* positions, float* chosen,
                 const Queue& queue) {
  take(values, nullptr, n, marks, k, positions, chosen, queue);
}

void cut_marked(float* values, int64_t n, const uint64_t* marks, int64_t k, int64_t* positions, float* chosen,
                const Queue& queue) {
  take(values, values, n, marks, k, positions, chosen, queue);
}

}  // namespace hpcrec::cuda

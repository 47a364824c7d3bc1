// Rising positions and masks of them; halves. On the device.
#include "messages.h"

#include "hpcrec/bits.h"
#include "hpcrec/half_bits.h"
#include "lanes.h"
#include "primitives.h"

namespace hpcrec::cuda {
namespace {

constexpr int64_t word_values = 32;
constexpr uint32_t quiet_nan = 0x7fc00000;

int64_t words_of(int64_t n) {
  return (n + word_values - 1) / word_values;
}

// ---- positions ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ bool rises(const int64_t* positions, int64_t i, int64_t n) {
  return below(positions[i], n) && (i == 0 || positions[i - 1] < positions[i]);
}

__global__ void __launch_bounds__(block_threads, 1)
    check_rising(const int64_t* positions, int64_t k, int64_t n, unsigned* faults) {
  const int64_t i = this_thread();
  if (i < k && !rises(positions, i, n)) note(faults, bad_positions);
}

__global__ void __launch_bounds__(block_threads, 1)
    scatter(float* out, int64_t n, const int64_t* positions, const float* values, int64_t k, bool accumulate,
            unsigned* faults) {
  const int64_t i = this_thread();
  if (i >= k) return;
  if (!rises(positions, i, n)) {
    note(faults, bad_positions);
    return;
  }
  out[positions[i]] = accumulate ? out[positions[i]] + values[i] : values[i];
}

__global__ void __launch_bounds__(block_threads, 1)
    pick(const float* values, int64_t n, const int64_t* positions, int64_t k, float* out, unsigned* faults) {
  const int64_t i = this_thread();
  if (i >= k) return;
  if (below(positions[i], n)) out[i] = values[positions[i]];
  else note(faults, bad_index);
}

// A byte of a mask each, which may lie anywhere.
__global__ void __launch_bounds__(block_threads, 1)
    write_bytes(const int64_t* positions, int64_t k, int64_t n, uint8_t* out) {
  const int64_t byte = this_thread();
  if (byte >= (n + 7) / 8) return;
  int64_t low = 0, high = k;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (positions[middle] < byte * 8) low = middle + 1;
    else high = middle;
  }
  unsigned bits = 0;
  for (; low < k && positions[low] < byte * 8 + 8; ++low) bits |= 1u << (positions[low] & 7);
  out[byte] = static_cast<uint8_t>(bits);
}

// A word of a mask each, from its bytes; bits behind the n are a fault.
__global__ void __launch_bounds__(block_threads, 1)
    read_words(const uint8_t* data, int64_t n, int64_t n_words, uint32_t* marks, int64_t* counts, unsigned* faults) {
  const int64_t w = this_thread();
  if (w >= n_words) return;
  uint32_t bits = 0;
  for (int64_t byte = 0; byte < 4 && w * 4 + byte < (n + 7) / 8; ++byte)
    bits |= static_cast<uint32_t>(data[w * 4 + byte]) << (8 * byte);
  if (w == n_words - 1 && n % word_values && bits >> (n % word_values)) note(faults, bad_mask);
  marks[w] = bits;
  counts[w] = __popc(bits);
}

__global__ void __launch_bounds__(block_threads, 1)
    list_words(const uint32_t* marks, const int64_t* ends, int64_t n_words, int64_t k, int64_t* positions,
               unsigned* faults) {
  const int64_t w = this_thread();
  if (w >= n_words) return;
  if (w == n_words - 1 && ends[w] != k) note(faults, bad_mask);
  uint32_t bits = marks[w];
  int64_t at = ends[w] - __popc(bits);
  for (int i = 0; bits; ++i, bits >>= 1)
    if (bits & 1) {
      if (below(at, k)) positions[at] = w * word_values + i;
      ++at;
    }
}

// ---- halves ---------------------------------------------------------------------------------------------------------

// Messages have halves at any byte.
__device__ __forceinline__ void put_half(uint8_t* at, uint16_t half) {
  at[0] = static_cast<uint8_t>(half);
  at[1] = static_cast<uint8_t>(half >> 8);
}
__device__ __forceinline__ uint16_t half_at(const uint8_t* at) {
  return static_cast<uint16_t>(at[0] | at[1] << 8);
}
__device__ __forceinline__ void put_word(uint8_t* at, uint32_t word) {
  put_half(at, static_cast<uint16_t>(word));
  put_half(at + 2, static_cast<uint16_t>(word >> 16));
}
__device__ __forceinline__ uint32_t word_at(const uint8_t* at) {
  return half_at(at) | static_cast<uint32_t>(half_at(at + 2)) << 16;
}

__global__ void __launch_bounds__(block_threads, 1)
    write_each(const float* values, int64_t n, bool whole, uint8_t* out) {
  const int64_t i = this_thread();
  if (i >= n) return;
  if (whole) put_word(out + 4 * i, bits_of(values[i]));
  else put_half(out + 2 * i, to_bf16(values[i]));
}

__global__ void __launch_bounds__(block_threads, 1) read_each(const uint8_t* data, int64_t n, bool whole, float* out) {
  const int64_t i = this_thread();
  if (i < n) out[i] = float_of(whole ? word_at(data + 4 * i) : static_cast<uint32_t>(half_at(data + 2 * i)) << 16);
}

// A warp a block: the largest magnitude, then the values divided by it.
__global__ void __launch_bounds__(block_threads, 1) write_scaled(const float* values, int64_t n, uint8_t* out) {
  constexpr int per_lane = static_cast<int>(half_block / all_lanes);
  const int64_t block = this_thread() / all_lanes, first = block * half_block;
  const unsigned lane = threadIdx.x % all_lanes;
  if (first >= n) return;
  float x[per_lane];
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const int64_t at = first + lane + i * static_cast<int64_t>(all_lanes);
    x[i] = at < n ? values[at] : 0.0f;
    largest = magnitude_of(x[i]) > largest ? magnitude_of(x[i]) : largest;
  }
#pragma unroll
  for (int other = 16; other > 0; other /= 2) {
    const uint32_t theirs = __shfl_sync(0xffffffffu, largest, static_cast<int>(lane) ^ other, 32);
    largest = theirs > largest ? theirs : largest;
  }
  if (lane == 0) put_word(out + block * scale_bytes, largest);
  uint8_t* halves = out + blocks_of(n) * scale_bytes;
  const bool some = largest != 0 && largest < infinite_bits;
  const float scale = float_of(largest);
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const int64_t at = first + lane + i * static_cast<int64_t>(all_lanes);
    if (at < n) put_half(halves + 2 * at, some ? to_half(x[i] / scale) : uint16_t{0});
  }
}

__global__ void __launch_bounds__(block_threads, 1) read_scaled(const uint8_t* data, int64_t n, float* out) {
  const int64_t i = this_thread();
  if (i >= n) return;
  const float scale = float_of(word_at(data + i / half_block * scale_bytes));
  const uint16_t half = half_at(data + blocks_of(n) * scale_bytes + 2 * i);
  out[i] = magnitude_of(scale) < infinite_bits ? from_half(half) * scale : float_of(quiet_nan);
}

}  // namespace

void require_rising(const int64_t* positions, int64_t k, int64_t n, const Queue& queue) {
  launch("require_rising", check_rising, blocks_for(k), 1, block_threads, queue.stream, positions, k, n, queue.faults);
}

void expand(float* out, int64_t n, const int64_t* positions, const float* values, int64_t k, const Queue& queue) {
  if (n > 0) zero(out, n * static_cast<int64_t>(sizeof(float)), queue.stream);
  launch("expand", scatter, blocks_for(k), 1, block_threads, queue.stream, out, n, positions, values, k, false,
         queue.faults);
}

void scatter_add(float* out, int64_t n, const int64_t* positions, const float* values, int64_t k, const Queue& queue) {
  launch("scatter_add", scatter, blocks_for(k), 1, block_threads, queue.stream, out, n, positions, values, k, true,
         queue.faults);
}

void gather(const float* values, int64_t n, const int64_t* positions, int64_t k, float* out, const Queue& queue) {
  launch("gather", pick, blocks_for(k), 1, block_threads, queue.stream, values, n, positions, k, out, queue.faults);
}

void write_mask(const int64_t* positions, int64_t k, int64_t n, uint8_t* out, const Queue& queue) {
  require_rising(positions, k, n, queue);
  launch("write_mask", write_bytes, blocks_for((n + 7) / 8), 1, block_threads, queue.stream, positions, k, n, out);
}

void read_mask(const uint8_t* data, int64_t n, int64_t* positions, int64_t k, const Queue& queue) {
  const int64_t n_words = words_of(n);
  const Scratch<uint32_t> marks(n_words, queue.stream);
  const Scratch<int64_t> ends(n_words, queue.stream);
  launch("read_mask: words", read_words, blocks_for(n_words), 1, block_threads, queue.stream, data, n, n_words,
         marks.data(), ends.data(), queue.faults);
  inclusive_sum(ends.data(), n_words, ends.data(), queue);
  launch("read_mask", list_words, blocks_for(n_words), 1, block_threads, queue.stream, marks.data(), ends.data(),
         n_words, k, positions, queue.faults);
}

void write_halves(const float* values, int64_t n, HalfKind kind, uint8_t* out, const Queue& queue) {
  if (kind == HalfKind::fp16)
    launch("write_halves", write_scaled, blocks_for(blocks_of(n) * all_lanes), 1, block_threads, queue.stream, values,
           n, out);
  else
    launch("write_halves", write_each, blocks_for(n), 1, block_threads, queue.stream, values, n, kind == HalfKind::fp32,
           out);
}

void read_halves(const uint8_t* data, HalfKind kind, float* out, int64_t n, const Queue& queue) {
  if (kind == HalfKind::fp16)
    launch("read_halves", read_scaled, blocks_for(n), 1, block_threads, queue.stream, data, n, out);
  else
    launch("read_halves", read_each, blocks_for(n), 1, block_threads, queue.stream, data, n, kind == HalfKind::fp32,
           out);
}

}  // namespace hpcrec::cuda

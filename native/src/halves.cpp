// Conversions by arithmetic on whole numbers and without branches, so that compilers can turn them into vector code.
#include "hpcrec/halves.h"

#include <algorithm>
#include <limits>

#include "hpcrec/bits.h"
#include "hpcrec/half_bits.h"
#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
typedef uint16_t __attribute__((aligned(1), may_alias)) Half;  // where messages have it: at any byte

void write_block(const float* __restrict values, int64_t n, uint8_t* __restrict scale_at, Half* __restrict out) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, magnitude_of(values[i]));
  std::memcpy(scale_at, &largest, scale_bytes);
  if (largest == 0 || largest >= infinite_bits) {
    std::memset(out, 0, n * sizeof(Half));
    return;
  }
  // Divided, and not multiplied by an inverse: that of a small scale would be infinite.
  const float scale = float_of(largest);
  for (int64_t i = 0; i < n; ++i) out[i] = to_half(values[i] / scale);
}

void read_block(const uint8_t* __restrict scale_at, const Half* __restrict data, float* __restrict out, int64_t n) {
  float scale;
  std::memcpy(&scale, scale_at, scale_bytes);
  if (magnitude_of(scale) >= infinite_bits) {
    std::fill_n(out, n, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = from_half(data[i]) * scale;
}

// Calls f(first, n) for the values of each piece, which begins where a block does.
template <class F> void for_blocks(int64_t n, F&& f) {
  parallel_pieces(team(n), [&](int piece, int pieces) {
    const Range mine = share(blocks_of(n), piece, pieces);
    const int64_t first = mine.first * half_block, last = std::min(n, mine.last * half_block);
    if (first < last) f(first, last - first);
  });
}

}  // namespace

void write_halves(const float* values, int64_t n, HalfKind kind, uint8_t* out) {
  for_blocks(n, [=](int64_t first, int64_t count) {
    if (kind == HalfKind::fp32) {
      std::memcpy(out + first * sizeof(float), values + first, count * sizeof(float));
    } else if (kind == HalfKind::bf16) {
      const float* __restrict from = values + first;
      Half* __restrict to = reinterpret_cast<Half*>(out) + first;
      for (int64_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
    } else {
      Half* halves = reinterpret_cast<Half*>(out + blocks_of(n) * scale_bytes);
      for (int64_t at = first; at < first + count; at += half_block)
        write_block(values + at, std::min(half_block, first + count - at), out + at / half_block * scale_bytes,
                    halves + at);
    }
  });
}

void read_halves(const uint8_t* data, HalfKind kind, float* out, int64_t n) {
  for_blocks(n, [=](int64_t first, int64_t count) {
    if (kind == HalfKind::fp32) {
      std::memcpy(out + first, data + first * sizeof(float), count * sizeof(float));
    } else if (kind == HalfKind::bf16) {
      const Half* __restrict from = reinterpret_cast<const Half*>(data) + first;
      float* __restrict to = out + first;
      for (int64_t i = 0; i < count; ++i) to[i] = float_of(static_cast<uint32_t>(from[i]) << 16);
    } else {
      const Half* halves = reinterpret_cast<const Half*>(data + blocks_of(n) * scale_bytes);
      for (int64_t at = first; at < first + count; at += half_block)
        read_block(data + at / half_block * scale_bytes, halves + at, out + at,
                   std::min(half_block, first + count - at));
    }
  });
}

}  // namespace hpcrec

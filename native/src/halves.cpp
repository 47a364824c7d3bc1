// Conversions by arithmetic on whole numbers and without branches, so that compilers can turn them into vector code.
// Subnormal halves go through a float32 addition that puts their last place where float32 has its own: for that no
// operand is ever a subnormal float32, which some processors are slow on.
#include "hpcrec/halves.h"

#include <algorithm>
#include <limits>

#include "hpcrec/bits.h"
#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
typedef uint16_t __attribute__((aligned(1), may_alias)) Half;  // where messages have it: at any byte

constexpr int64_t half_block = 128;  // values that share a scale
constexpr int64_t scale_bytes = sizeof(float);
constexpr uint32_t bias_change = 112u << 23;      // of exponents, float32 less half, where a float32 has them
constexpr uint32_t least_normal = 113u << 23;     // 2^-14, the least normal half
constexpr uint32_t half_exponent = 0x7c00 << 13;  // the exponent of a half, moved to the places of a float32

inline uint16_t to_bf16(float x) {
  const uint32_t bits = bits_of(x), upper = bits >> 16;
  const uint32_t nearest = (bits + 0x7fff + (upper & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffff) > infinite_bits ? upper | 0x40 : nearest);
}

// To nearest even; of magnitudes up to 1.
inline uint16_t to_half(float x) {
  const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffff;
  const uint32_t normal = (magnitude - bias_change + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);  // in units of 2^-24, as 0.5 has them
  return static_cast<uint16_t>((magnitude < least_normal ? subnormal : normal) | (bits >> 16 & 0x8000));
}

// Any half, NaN and infinities too.
inline float from_half(uint16_t half) {
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13, exponent = magnitude & half_exponent;
  const uint32_t normal = magnitude + bias_change + (exponent == half_exponent ? bias_change : 0);
  const uint32_t subnormal = bits_of(float_of(magnitude + least_normal) - float_of(least_normal));
  return float_of((exponent ? normal : subnormal) | static_cast<uint32_t>(half & 0x8000) << 16);
}

int64_t blocks_of(int64_t n) {
  return n / half_block + (n % half_block != 0);
}

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

// float32 as half as many bits, and back, by arithmetic on whole numbers and without branches.
//
// Subnormal halves go through a float32 addition that puts their last place where float32 has its own: for that no
// operand is ever a subnormal float32, which some processors are slow on.
#pragma once
#include "hpcrec/bits.h"

namespace hpcrec {

constexpr int64_t half_block = 128;  // values that share a scale
constexpr int64_t scale_bytes = sizeof(float);
constexpr uint32_t bias_change = 112u << 23;      // of exponents, float32 less half, where a float32 has them
constexpr uint32_t least_normal = 113u << 23;     // 2^-14, the least normal half
constexpr uint32_t half_exponent = 0x7c00 << 13;  // the exponent of a half, moved to the places of a float32

HPCREC_ANYWHERE inline uint16_t to_bf16(float x) {
  const uint32_t bits = bits_of(x), upper = bits >> 16;
  const uint32_t nearest = (bits + 0x7fff + (upper & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffff) > infinite_bits ? upper | 0x40 : nearest);
}

// The magnitude of a half, to nearest even; of that of a float32 up to 65504.
HPCREC_ANYWHERE inline uint32_t half_magnitude(uint32_t magnitude) {
  const uint32_t normal = (magnitude - bias_change + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);  // in units of 2^-24, as 0.5 has them
  return magnitude < least_normal ? subnormal : normal;
}

// To nearest even; of magnitudes up to 65504.
HPCREC_ANYWHERE inline uint16_t to_half(float x) {
  const uint32_t bits = bits_of(x);
  return static_cast<uint16_t>(half_magnitude(bits & 0x7fffffff) | (bits >> 16 & 0x8000));
}

// Any half, NaN and infinities too.
HPCREC_ANYWHERE inline float from_half(uint16_t half) {
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13, exponent = magnitude & half_exponent;
  const uint32_t normal = magnitude + bias_change + (exponent == half_exponent ? bias_change : 0);
  const uint32_t subnormal = bits_of(float_of(magnitude + least_normal) - float_of(least_normal));
  return float_of((exponent ? normal : subnormal) | static_cast<uint32_t>(half & 0x8000) << 16);
}

HPCREC_ANYWHERE inline int64_t blocks_of(int64_t n) {
  return n / half_block + (n % half_block != 0);
}

}  // namespace hpcrec

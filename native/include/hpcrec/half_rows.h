// Rows of 16-bit elements, fp16 or bf16: computed with as float32, and rounded when they are written. See
// hpcrec/kernels/reference_half_rows.py.
#pragma once
#include "hpcrec/half_bits.h"
#include "hpcrec/halves.h"
#include "hpcrec/mix.h"

namespace hpcrec {

// An element of a row.
struct Fp16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

// What is written: elements of a kind, rounded to the nearest, or stochastically by the step's random bits.
struct HalfRows {
  uint16_t* bits;  // [n_rows, width]
  HalfKind kind;   // bf16 or fp16
  bool nearest;
  uint64_t draws;  // names the random bits of the step
};

HPCREC_ANYWHERE inline float widened(float x) {
  return x;
}
HPCREC_ANYWHERE inline double widened(double x) {
  return x;
}
HPCREC_ANYWHERE inline float widened(Bf16 x) {
  return float_of(static_cast<uint32_t>(x.bits) << 16);
}
HPCREC_ANYWHERE inline float widened(Fp16 x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  return from_half(x.bits);
#endif
}

// The key of a row's random bits, and their word for columns 2 * pair (the lower half) and 2 * pair + 1. Words are the
// key's lower half and the number of the pair, through the finalizer of MurmurHash3 (Appleby): two products of 32 bits,
// which vector units have.
HPCREC_ANYWHERE inline uint64_t key_of_row(uint64_t draws, int64_t row) {
  return mix(static_cast<uint64_t>(row) ^ draws);
}
HPCREC_ANYWHERE inline uint32_t random_word(uint64_t key, uint32_t pair) {
  uint32_t x = static_cast<uint32_t>(key) + pair * 0x9e3779b9u;
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return (x ^ x >> 16) ^ static_cast<uint32_t>(key >> 32);
}
HPCREC_ANYWHERE inline uint32_t random_of_column(uint64_t key, int64_t column) {
  return random_word(key, static_cast<uint32_t>(column >> 1)) >> (column & 1 ? 16 : 0) & 0xffff;
}

// What each kind has in common below: magnitudes are bits of a float32 without its sign, `largest` that of the largest
// number, and NaNs are all the same one.
template <class E> struct HalfLimits;
template <> struct HalfLimits<Fp16> {
  static constexpr uint32_t largest = 0x477fe000, infinite = 0x7c00, nan = 0x7e00;
};
template <> struct HalfLimits<Bf16> {
  static constexpr uint32_t largest = 0x7f7f0000, infinite = 0x7f80, nan = 0x7fc0;
};
template <class E> HPCREC_ANYWHERE inline uint32_t bounded(uint32_t magnitude) {
  return magnitude < HalfLimits<E>::largest ? magnitude : HalfLimits<E>::largest;
}
template <class E> HPCREC_ANYWHERE inline uint32_t finished(float x, uint32_t rounded) {
  const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffff;
  const uint32_t value = magnitude >= infinite_bits ? HalfLimits<E>::infinite : rounded;
  return magnitude > infinite_bits ? HalfLimits<E>::nan : value | (bits >> 16 & 0x8000);
}

// The 16 bits of the number of a kind that is nearest.
template <class E> HPCREC_ANYWHERE uint32_t nearest_half(float x);
template <> HPCREC_ANYWHERE inline uint32_t nearest_half<Bf16>(float x) {
  const uint32_t magnitude = bounded<Bf16>(magnitude_of(x));
  return finished<Bf16>(x, (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16);
}
template <> HPCREC_ANYWHERE inline uint32_t nearest_half<Fp16>(float x) {
  return finished<Fp16>(x, half_magnitude(bounded<Fp16>(magnitude_of(x))));
}

// The 16 bits of one of the two numbers around: up with the probability that the part below the last place gives, by 16
// random bits; exactly so where that part has no more bits, else by its upper 16.
template <class E> HPCREC_ANYWHERE uint32_t stochastic_half(float x, uint32_t random);
template <> HPCREC_ANYWHERE inline uint32_t stochastic_half<Bf16>(float x, uint32_t random) {
  return finished<Bf16>(x, (bounded<Bf16>(magnitude_of(x)) + random) >> 16);
}
template <> HPCREC_ANYWHERE inline uint32_t stochastic_half<Fp16>(float x, uint32_t random) {
  const uint32_t magnitude = bounded<Fp16>(magnitude_of(x)),
                 small = magnitude < least_normal ? magnitude : least_normal;
  const uint32_t normal = (magnitude - bias_change + (random >> 3)) >> 13;
  // In units of 2^-40, 16 bits below the last place of a subnormal half; what is below them is cut off.
  const uint32_t subnormal = (static_cast<uint32_t>(static_cast<int32_t>(float_of(small) * 0x1p40f)) + random) >> 16;
  return finished<Fp16>(x, magnitude < least_normal ? subnormal : normal);
}

// All rows, read and written.
void to_half_rows(const float* rows, int64_t n, int64_t width, int64_t first_row, const HalfRows& out);
void from_half_rows(const uint16_t* bits, HalfKind kind, int64_t n, float* out);  // n elements

}  // namespace hpcrec

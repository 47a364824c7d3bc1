// The bits of a float32, and its magnitude as a whole number: larger numbers for larger magnitudes, NaNs above
// infinity.
#pragma once
#include <cstdint>
#include <cstring>

#include "hpcrec/anywhere.h"

namespace hpcrec {

constexpr uint32_t infinite_bits = 0x7f800000;

HPCREC_ANYWHERE inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

HPCREC_ANYWHERE inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

HPCREC_ANYWHERE inline uint32_t magnitude_of(float x) {
  return bits_of(x) & 0x7fffffff;
}

}  // namespace hpcrec

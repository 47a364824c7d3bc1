// A seeded permutation of [0, 4^h), by whose cycles ids below any number are permuted. See hpcrec/kernels/reference.py.
#pragma once
#include "hpcrec/mix.h"

namespace hpcrec {

// A Feistel network over 2 * half_bits bits.
struct Feistel {
  static constexpr int n_rounds = 4;
  uint64_t key[n_rounds], mask;
  int half_bits;

  Feistel(uint64_t rows, uint64_t seed) : half_bits(1) {
    while (half_bits < 32 && (uint64_t{1} << (2 * half_bits)) < rows) ++half_bits;
    mask = (uint64_t{1} << half_bits) - 1;
    for (int r = 0; r < n_rounds; ++r) key[r] = mix(seed + golden * static_cast<uint64_t>(r));
  }
  HPCREC_ANYWHERE uint64_t forward(uint64_t x) const {
    uint64_t left = x >> half_bits, right = x & mask;
    for (int r = 0; r < n_rounds; ++r) {
      const uint64_t swapped = left ^ (mix(right + key[r]) & mask);
      left = right;
      right = swapped;
    }
    return left << half_bits | right;
  }
  HPCREC_ANYWHERE uint64_t backward(uint64_t x) const {
    uint64_t left = x >> half_bits, right = x & mask;
    for (int r = n_rounds - 1; r >= 0; --r) {
      const uint64_t swapped = right ^ (mix(left + key[r]) & mask);
      right = left;
      left = swapped;
    }
    return left << half_bits | right;
  }
};

}  // namespace hpcrec

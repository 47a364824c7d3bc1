// Rising positions of a vector. See hpcrec/kernels/reference_positions.py.
#pragma once
#include <cstdint>

namespace hpcrec {

// Each in [0, n) and above the one before, or std::invalid_argument.
void require_rising(const int64_t* positions, int64_t k, int64_t n);
// out [n] becomes the values at rising positions, and zeros elsewhere.
void expand(float* out, int64_t n, const int64_t* positions, const float* values, int64_t k);
void scatter_add(float* out, int64_t n, const int64_t* positions, const float* values, int64_t k);
void gather(const float* values, int64_t n, const int64_t* positions, int64_t k, float* out);
// A bit for each of n positions, in (n + 7) / 8 bytes.
void write_mask(const int64_t* positions, int64_t k, int64_t n, uint8_t* out);
void read_mask(const uint8_t* data, int64_t n, int64_t* positions, int64_t k);

}  // namespace hpcrec

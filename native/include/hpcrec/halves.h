// float32 written in half as many bytes. See hpcrec/kernels/reference_halves.py.
#pragma once
#include <cstdint>

namespace hpcrec {

enum class HalfKind : int { bf16, fp16, fp32 };  // in the order of HALF_KINDS

// The bytes may begin anywhere, and are as many as `half_bytes` says.
void write_halves(const float* values, int64_t n, HalfKind kind, uint8_t* out);
void read_halves(const uint8_t* data, HalfKind kind, float* out, int64_t n);

}  // namespace hpcrec

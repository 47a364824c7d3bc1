// Rows of halves made and read on the device: the calls of hpcrec/half_rows.h, in a stream's order.
#pragma once
#include "device.h"
#include "hpcrec/half_rows.h"

namespace hpcrec::cuda {

void to_half_rows(const float* rows, int64_t n, int64_t width, int64_t first_row, const HalfRows& out,
                  const Queue& queue);
void from_half_rows(const uint16_t* bits, HalfKind kind, int64_t n, float* out, const Queue& queue);  // n elements

}  // namespace hpcrec::cuda

// What is picked of vectors and how it is written, on the device: the calls of hpcrec/threshold.h, positions.h and
// halves.h, over device memory and in a stream's order. Those that return how many values were marked wait for them.
#pragma once
#include "device.h"
#include "hpcrec/halves.h"

namespace hpcrec::cuda {

// The keep-th largest magnitude, 1 <= keep <= n; waits for it.
float threshold_of(const float* values, int64_t n, int64_t keep, const Queue& queue);
void take_largest(const float* values, int64_t n_vectors, int64_t width, int64_t keep, int64_t* positions,
                  float* chosen, const Queue& queue);
int64_t mark_above(const float* values, int64_t n, float tau, uint64_t* marks, const Queue& queue);
int64_t mark_sum(const float* gradient, float* residual, int64_t n, float tau, uint64_t* marks, const Queue& queue);
void take_marked(const float* values, int64_t n, const uint64_t* marks, int64_t k, int64_t* positions, float* chosen,
                 const Queue& queue);
void cut_marked(float* values, int64_t n, const uint64_t* marks, int64_t k, int64_t* positions, float* chosen,
                const Queue& queue);

void require_rising(const int64_t* positions, int64_t k, int64_t n, const Queue& queue);
void expand(float* out, int64_t n, const int64_t* positions, const float* values, int64_t k, const Queue& queue);
void scatter_add(float* out, int64_t n, const int64_t* positions, const float* values, int64_t k, const Queue& queue);
void gather(const float* values, int64_t n, const int64_t* positions, int64_t k, float* out, const Queue& queue);
void write_mask(const int64_t* positions, int64_t k, int64_t n, uint8_t* out, const Queue& queue);
void read_mask(const uint8_t* data, int64_t n, int64_t* positions, int64_t k, const Queue& queue);

void write_halves(const float* values, int64_t n, HalfKind kind, uint8_t* out, const Queue& queue);
void read_halves(const uint8_t* data, HalfKind kind, float* out, int64_t n, const Queue& queue);

}  // namespace hpcrec::cuda

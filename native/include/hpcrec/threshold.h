// Picking the largest of many values by a threshold. See hpcrec/kernels/reference_threshold.py.
//
// In two steps, since how many are picked is known only when all values have been compared: the first marks them, a bit
// each, 64 in a word; the second takes the marked ones.
#pragma once
#include <cstdint>

namespace hpcrec {

// The keep-th largest magnitude, 1 <= keep <= n.
float threshold_of(const float* values, int64_t n, int64_t keep);
// Marks values whose magnitude is at least tau, and every NaN, in (n + 63) / 64 words; returns how many these are.
int64_t mark_above(const float* values, int64_t n, float tau, uint64_t* marks);
// The same of the sum of both, which the residual becomes.
int64_t mark_sum(const float* gradient, float* residual, int64_t n, float tau, uint64_t* marks);
// Positions and values of the k marked ones.
void take_marked(const float* values, int64_t n, const uint64_t* marks, int64_t k, int64_t* positions, float* chosen);
// Of each vector the `keep` largest magnitudes, 1 <= keep <= width, of equals the first: positions among all values,
// rising, and what they are; n_vectors * keep of both.
void take_largest(const float* values, int64_t n_vectors, int64_t width, int64_t keep, int64_t* positions,
                  float* chosen);
// Besides, makes them zero.
void cut_marked(float* values, int64_t n, const uint64_t* marks, int64_t k, int64_t* positions, float* chosen);

}  // namespace hpcrec
